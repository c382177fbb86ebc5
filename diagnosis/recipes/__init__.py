"""Recipes: one known fault of a fleet in each file. `registry.py` lists them."""
