"""Who asks, what they bought and what they may use: policy, limits, fairness, admission."""
