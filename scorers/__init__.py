"""One scorer a file: each adds or subtracts seconds from the candidates of one request."""
