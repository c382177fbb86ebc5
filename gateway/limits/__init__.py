"""Limits at work: what requests are taken to need, who lends slices of shared limits, what clients are told."""
