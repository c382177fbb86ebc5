"""How many engines each pool should have: gathers the load, agrees with peers, and answers autoscalers."""
