"""Searches for the best placement of recorded requests when arrivals, lengths and reuse are known beforehand."""
