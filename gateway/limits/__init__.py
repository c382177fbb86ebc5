"""Quotas of tenants and users: estimates, reservations, leases of limits that gateways share, rate-limit headers."""
