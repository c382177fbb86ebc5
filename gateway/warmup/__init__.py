"""Replays of hot prefixes to new pods before they take load. Exists only where it is configured."""
