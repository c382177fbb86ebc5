"""What splitting prefill from decode buys: fixed splits, roles that follow the traffic, and no split at all."""
