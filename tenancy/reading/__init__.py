"""Reads a policy file into a `Policy`. `fields.py` defines each key once, for reader, schema and explanation."""
