"""Faults in simulated pods before a gateway process, found by its doctor: `make test-doctor`."""
