"""How long and how often a request is tried, before the client has a byte of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a request is tried."""

    deadline_s: float = 600.0
    """From arrival to the first byte: after it no other pod is tried."""
    attempts: int = 3
    attempts_when_broken: int = 2
    """A request that breaks a pod may be what breaks it: it gets one more pod, not the whole fleet."""
