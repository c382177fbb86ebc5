"""What the operators' page shows: totals of requests, and compact rows of pods, tiers and tenants."""
