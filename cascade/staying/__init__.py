"""Does the promise still hold? Shadow samples within a budget, thresholds that follow them, and an alarm."""
