"""One routing decision: the router, the placement it makes, and the receipt of it."""
