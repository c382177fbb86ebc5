"""Tests of `tenancy.report`."""
