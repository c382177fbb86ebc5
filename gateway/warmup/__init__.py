"""Warm-up of new pods: hot prefixes are replayed to them before they take load. Exists only where it is configured."""
