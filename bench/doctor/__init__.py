"""Diagnosis beside faults that were injected into simulated pods in virtual time."""
