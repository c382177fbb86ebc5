"""Tests of `tenancy`."""
