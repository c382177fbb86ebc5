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
