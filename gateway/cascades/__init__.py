"""Ladders at work: which rung is asked first, who judges its answer, what went up and what that cost."""
