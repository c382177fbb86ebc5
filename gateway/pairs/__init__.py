"""Pairs at work: both legs of one request, what passes between them, and what is asked of pods for that."""
