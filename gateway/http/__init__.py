"""The downstream HTTP codec: accepts connections, parses requests, writes responses. Knows no pod and no pipeline."""
