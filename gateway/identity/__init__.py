"""Who asks: keys by their digests, tokens by their issuer's keys, and what trusted proxies say."""
