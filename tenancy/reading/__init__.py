"""A policy file to a `Policy`: what each word means stands in `words.py`, once, for reader, schema and explanation."""
