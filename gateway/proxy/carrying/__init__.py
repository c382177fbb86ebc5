"""One request carried to a pod, or to a pair, a rung or a second pod after the first."""
