"""Measures a real engine over HTTP and fits an engine profile to what was seen."""
