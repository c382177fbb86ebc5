"""A canary at work: watched by its outcomes, judged together with all gateways, shown, and promoted or reverted."""
