"""Composition of a gateway: builds it from its settings, runs it, reloads it and stops it."""
