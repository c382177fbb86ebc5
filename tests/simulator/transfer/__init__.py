"""Simulated pods that share KV."""
