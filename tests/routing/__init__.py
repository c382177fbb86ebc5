"""Tests of `routing`."""
