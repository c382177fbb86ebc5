"""Tests of the simulated pods."""
