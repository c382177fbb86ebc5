"""Diagnosis of a fleet: facts in, findings out. Pure: time is an argument; no I/O."""
