"""Attempts over the gateway's own connections: sends a request to a pod and relays its response to the client."""
