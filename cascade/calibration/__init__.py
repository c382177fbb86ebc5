"""Labelled examples to a ladder file: which answers of which rung may be kept, and what can be promised of that."""
