"""Tests of the search for the best placement."""
