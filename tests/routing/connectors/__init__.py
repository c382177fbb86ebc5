"""Tests of `routing.connectors`."""
