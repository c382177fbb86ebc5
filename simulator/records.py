"""What became of each request of a replay, as both shells note it: the virtual one and the one over HTTP.

Times are engine seconds from the start of the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.spread import Spread


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Unknown fields are None; `failure` is empty if it was answered in full."""

    index: int
    arrived_s: float
    prompt_tokens: int
    output_tokens: int = 0
    pod: str | None = None
    predicted_cached_input_tokens: int | None = None
    cached_tokens: int | None = None
    predicted_ttft_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    failure: str = ""
    prefill_pod: str | None = None
    """Who did its prefill, where that was another pod."""

    @property
    def is_answered(self) -> bool:
        """Whether it got a whole answer."""
        return not self.failure and self.ttft_s is not None

    @property
    def warm_surprise(self) -> int | None:
        """Return how many tokens too many were predicted cached."""
        if self.predicted_cached_input_tokens is None or self.cached_tokens is None:
            return None
        return self.predicted_cached_input_tokens - self.cached_tokens

    @property
    def cold_tokens(self) -> int:
        """What had to be computed for it."""
        return self.prompt_tokens - (self.cached_tokens or 0)

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first."""
        if self.ttft_s is None or self.duration_s is None or self.output_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Replay:
    """One routing's run over one trace."""

    routing: str
    trace: str
    pods: tuple[str, ...]
    records: tuple[Record, ...]
    length_s: float
    """From the first arrival to the last token."""
    took_s: float
    """Real seconds."""
    is_live: bool = False
    late_s: Spread | None = None
    """How long after they were due requests were sent; None in virtual time, where nothing is late."""
    role_changes: tuple[tuple[float, str, str], ...] = ()
    """(When, which engine, its new role), where roles follow the traffic."""
    busy: float | None = None
    """The share of this machine's cores that was used, by us or others, where it matters and the system tells."""


class Progress(Protocol):
    """Told how far a replay has come."""

    def __call__(self, record: Record) -> None:
        """One more request has ended."""
        ...
