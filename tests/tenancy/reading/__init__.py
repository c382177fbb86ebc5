"""Tests of `tenancy.reading`."""
