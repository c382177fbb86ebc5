"""Tests of `routing.decision`."""
