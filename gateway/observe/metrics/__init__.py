"""Metric collectors: what the gateway counts, and how Prometheus reads it."""
