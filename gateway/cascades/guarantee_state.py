"""What can be said of a ladder's promise right now, and what it cost to find out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one ladder that was calibrated."""

    is_promised: bool
    max_loss: float
    examples: int
    has_drifted: bool = False
    shadows: int = 0
    agreement: float = 1.0
    shadow_cost: float = 0.0
    frozen: tuple[bool, ...] = ()
    """By rung but the top: whether it keeps nothing, and is asked for one request in `keeping.TRIAL` only."""
    raised: tuple[float, ...] = ()
    """By rung but the top: steps that shadows have raised its thresholds by; at 10 the promise is withdrawn."""
