"""Prefill/decode pairs: the two attempts of one request, the KV parameters between them, and room for the KV."""
