"""Tests of what the benches say."""
