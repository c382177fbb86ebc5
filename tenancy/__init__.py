"""Tenants, service levels and limits: policy, quotas, fair shares, admission."""
