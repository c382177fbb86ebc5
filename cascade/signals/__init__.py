"""Signals of an answer: log-probabilities and form, never the model's own estimate of its confidence."""
