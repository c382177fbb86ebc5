"""KV transfer connectors, one a file: the parameters of both attempts of a pair."""
