"""Tests of the SLO bench."""
