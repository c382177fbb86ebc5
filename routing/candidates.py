"""What is scored, once, for all engines together: one list per fact, one position per engine.

A scorer takes `Candidates` and gives back seconds, one per position. Lists, not objects: a decision over a hundred
engines is a handful of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from routing.facts import Prompts
from routing.ledger import Pledge
from routing.pods import Engine
from routing.request import Request


class Candidates(Struct, gc=False):
    """The engines that may serve a request. All sequences have the same length and order."""

    engines: Sequence[Engine]
    now_s: float
    prompt_tokens: float
    """Expected, from the prompt's size."""
    warm_tokens: Sequence[float]
    """How many leading tokens each engine holds already."""
    prefill_work: Sequence[float]
    """Tokens each would still have to prefill, weighted by context (`routing.cost.prefill_work`)."""
    own_s: Sequence[float]
    """What that prefill takes each of them."""
    ahead_s: Sequence[float]
    """What prefill is queued before this request takes them."""
    running: Sequence[float]
    """Sequences there now, ours and foreign."""
    kv_tokens: Sequence[float]
    """KV tokens in use by them."""
    kv_capacity: Sequence[float]
    """KV tokens each engine can hold; infinite where it has not said so."""
    least_kv_capacity: float
    prefill_overhead_s: Sequence[float]
    seconds_per_token: Sequence[float]
    step_base_s: Sequence[float]
    step_per_sequence_s: Sequence[float]
    residence_s: Sequence[float]
    last_turn: Sequence[int]
    ready_since_s: Sequence[float]
    newest_since_s: float
    session_at: int | None = None
    """Position of the engine where the request's session was last, or where the response it continues lives."""
    open_steps: Sequence[tuple[int, int, float]] = ()
    """(Position, requests whose first token comes with it, tokens that still fit) where an engine's last step of queued
    prefill has not begun, so that this request would join it."""
    prefix: int | None = None
    """The last block of the prompt that somebody holds; None where nobody does, or all do."""
    waited_s: float = 0.0
    """How long requests have lately waited, in all, for engines that hold as much of the prompt as any
    (`routing.demand`)."""
    displaced_share: float = 0.0
    """How much must be computed again, in the end, for each token that is computed anew (`routing.reuse`)."""
    engines_in_all: int = 0
    """How many may serve it, of which these are worth scoring."""
    holds_adapter: Sequence[bool] = ()
    """Which engines used the request's adapter lately; empty where the model is no adapter."""
    prompts: Sequence[Prompts] = ()
    """For which prompts each was put up; empty where all are for any."""
    prefillers: Sequence[Engine | None] = ()
    """Who prefills for each, where another engine does; empty where none of them is a pair. A pair stands here by its
    decode engine, with the prefill of the other: warm tokens, work, own and queued seconds, and the hand-over among the
    overhead."""
    prefill_shares: Sequence[float] = ()
    """The share of its time that prefill has lately been asked of each; empty where another engine could prefill for
    none of them."""
    usual_prefill_s: float = 0.0
    usual_stream_s: float = 0.0
    """How long prompts and undisturbed answers take here (`routing.usual`), said where there are shares of prefill."""
    burden_s: Sequence[float] = ()
    """Prefill on the very engine that decodes, where pairs make it another than own seconds."""

    @property
    def ahead_tokens(self) -> list[float]:
        """Prefill work queued before this request, in tokens."""
        return [ahead / pace for ahead, pace in zip(self.ahead_s, self.seconds_per_token, strict=True)]


@runtime_checkable
class Scorer(Protocol):
    """Seconds to add for each candidate; negative seconds speak for it. A scorer remembers nothing."""

    name: ClassVar[str]

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """One number per candidate, in order; an empty list where it has nothing to say of any of them."""
        ...


class NotNow(Exception):  # noqa: N818 - not an error
    """No engine may take a request now; later one may."""


class Gate(Protocol):
    """Who may be chosen now, asked in the middle of a decision: admission and routing share one look around."""

    pledge: Pledge | None
    """What the request is promised where it is placed."""

    def opens(self, candidates: Candidates, at: int) -> bool:
        """Whether the engine in a position may be chosen. Asked of the best first, and of no more than it takes."""
        ...
