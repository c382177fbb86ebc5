"""Canaries at run time: collects their outcomes, shares the evidence between gateways, promotes or reverts."""
