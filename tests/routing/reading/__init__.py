"""Tests of `routing.reading`."""
