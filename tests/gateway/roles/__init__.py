"""Roles that follow the traffic."""
