"""Canaries at work: watched by their outcomes, shown, and rolled back by themselves."""
