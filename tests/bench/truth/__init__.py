"""Tests of the truth table."""
