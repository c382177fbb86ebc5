"""What the gateway costs, measured as ratios in one run; the last numbers are beside each script."""
