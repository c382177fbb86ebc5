"""Roles that follow the traffic: every second, decides whether an engine changes between prefill and decode."""
