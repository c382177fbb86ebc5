"""Objectives under overload: scenarios with tiers and tenants, in virtual time and over HTTP."""
