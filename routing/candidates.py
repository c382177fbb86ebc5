"""What is scored, once, for all engines together: one list per fact, one position per engine.

A scorer takes `Candidates` and gives back seconds, one per position. Lists, not objects: a decision over a hundred
engines is a handful of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from routing.fleet import Engine
from routing.request import Request


@dataclass(slots=True)
class Candidates:
    """The engines that may serve a request. All sequences have the same length and order."""

    engines: Sequence[Engine]
    now_s: float
    prompt_tokens: float
    """Expected, from the prompt's size."""
    warm_tokens: list[float]
    """How many leading tokens each engine holds already."""
    prefill_work: list[float]
    """Tokens each would still have to prefill, weighted by context (`routing.cost.prefill_work`)."""
    ahead_tokens: list[float]
    """Prefill work queued before this request."""
    running: list[float]
    """Sequences there now, ours and foreign."""
    kv_tokens: list[float]
    """KV tokens in use by them."""
    prefill_overhead_s: list[float]
    seconds_per_token: list[float]
    step_base_s: list[float]
    step_per_sequence_s: list[float]
    residence_s: list[float]
    last_turn: list[int]
    ready_since_s: Sequence[float]
    session_slot: int | None = None
    """Where the request's session was last, or where the response it continues lives."""
    holds_adapter: Sequence[bool] = field(default_factory=list)
    """Which engines used the request's adapter lately; empty where the model is no adapter."""


@runtime_checkable
class Scorer(Protocol):
    """Seconds to add for each candidate; negative seconds speak for it. A scorer remembers nothing."""

    name: ClassVar[str]

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """One number per candidate, in order."""
        ...
