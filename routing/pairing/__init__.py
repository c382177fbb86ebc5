"""Prefill/decode disaggregation: which engines pair, what a KV transfer takes, and how roles follow the load."""
