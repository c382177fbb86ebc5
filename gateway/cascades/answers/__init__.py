"""Answers heard as evidence, one family of APIs a file."""
