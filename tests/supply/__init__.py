"""Tests of supply decisions: values in, values out."""
