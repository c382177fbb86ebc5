"""Authentication of callers: API keys, JWTs, headers of trusted proxies; and the policy they are checked against."""
