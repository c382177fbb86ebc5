"""How long and how often a request is tried, before its client has a byte of an answer and after a stream was cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from routing.retries import RetryTerms


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a request is tried."""

    deadline_s: float = 600.0
    """From arrival to the first byte: after it no other pod is tried."""
    resume_s: float = 30.0
    """From a cut to the first byte of what is left."""
    retries: RetryTerms = field(default_factory=RetryTerms)
    among: int = 1
    """So many processes share what they allow."""
