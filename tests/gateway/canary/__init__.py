"""Canaries at work."""
