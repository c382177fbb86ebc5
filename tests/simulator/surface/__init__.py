"""Tests of what simulated pods say over HTTP."""
