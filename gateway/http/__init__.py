"""Downstream HTTP: accepts connections, parses requests, writes responses. Independent of pods and pipeline."""
