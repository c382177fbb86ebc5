"""What the gateway counts, and how Prometheus reads it."""
