"""Who keeps whose promise when too much is asked: scenarios with tiers and tenants, in virtual time and over HTTP."""
