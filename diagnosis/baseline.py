"""A week of what is normal for a fleet. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Baseline:
    """Normal times and levels by hour of the week."""

    saved_at_s: float = 0.0
