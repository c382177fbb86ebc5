"""Roles that follow the traffic: looks at the fleet now and then, and changes what engines are for."""
