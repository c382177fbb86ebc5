"""Tests of `tenancy.limits`."""
