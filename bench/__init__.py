"""What the gateway costs, measured as ratios in one run; the last numbers stand beside each script."""
