"""KV transfer connectors, one a file: the parameters that both legs of a pair are sent."""
