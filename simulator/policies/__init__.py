"""Policies of other routers, written from what is published of them, to compare with: scorers in a registry of the lab.

None of them is offered by `hearth serve`.
"""
