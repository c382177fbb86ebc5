"""Tests of `routing.pairing.pairing`."""
