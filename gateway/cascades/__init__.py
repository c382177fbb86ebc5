"""Cascades: one name that several models answer, cheapest first, escalating where an answer is not good enough."""
