"""Tests of `routing.precise`."""
