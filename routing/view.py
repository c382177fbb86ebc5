"""All that may serve one request, scored, as one value: engines by themselves, and behind them pairs of engines."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from routing.ballot import Scored
from routing.candidates import Candidates
from routing.fallback import Fallback
from routing.learning import ALONE, Prediction
from routing.pods import Engine
from routing.prefill_side import Transfer


class Match(Struct, frozen=True, gc=False):
    """A decode engine's best partner: its position among the prefill candidates, and what the hand-over takes."""

    at: int
    transfer: Transfer


class Pairs(Struct, frozen=True, gc=False):
    """The pairs of one decision: positions from `first` on stand for `matches`, in order."""

    first: int
    prefill: Candidates
    matches: Sequence[Match]
    singles: Sequence[int]
    """By match, the position of the decode engine as a single candidate."""
    decode: Sequence[Engine]
    """By match."""


class View(Struct, frozen=True, gc=False):
    """All that may serve one request now."""

    candidates: Candidates
    scored: Scored
    pairs: Pairs | None = None
    fallback: Fallback | None = None
    """Why the single engines do what they are not there for."""


class Foreseen(Struct, frozen=True, gc=False):
    """What a placing would come to."""

    engine: Engine
    prefill: Engine | None
    """Who would do the prefill, where it would be another engine."""
    ttft_s: float
    own_s: float
    """Of the request's own prefill."""
    tpot_s: float
    """A step of the engine with one sequence more."""
    prompt_tokens: float
    warm_tokens: float
    total_s: float
    """Its score: all seconds, those of others too."""


def foreseen(view: View, at: int) -> Foreseen:
    """The candidate in a position, told as values."""
    seen = view.candidates
    return Foreseen(
        engine=seen.engines[at],
        prefill=seen.prefillers[at] if seen.prefillers else None,
        ttft_s=seen.prefill_overhead_s[at] + seen.ahead_s[at] + seen.own_s[at],
        own_s=seen.own_s[at],
        tpot_s=seen.step_base_s[at] + seen.step_per_sequence_s[at] * (seen.running[at] + 1),
        prompt_tokens=seen.prompt_tokens,
        warm_tokens=seen.warm_tokens[at],
        total_s=view.scored.totals[at],
    )


def predicted_prefill(pairs: Pairs, match: Match) -> Prediction:
    """What is believed of a pair's prefill leg by itself."""
    seen, at = pairs.prefill, match.at
    ahead_s, own_s = seen.ahead_s[at], seen.own_s[at]
    return Prediction(
        prompt_tokens=seen.prompt_tokens,
        warm_tokens=seen.warm_tokens[at],
        ttft_s=seen.prefill_overhead_s[at] + ahead_s + own_s,
        work_tokens=seen.prefill_work[at] + ahead_s / seen.seconds_per_token[at],
        running=seen.running[at],
        is_alone=ahead_s <= ALONE * own_s,
        own_s=own_s,
    )
