"""The result of a precise prefix-cache lookup for one request, fetched before the request is placed.

Does not know how it was looked up; its listener is notified of what becomes of the request.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from routing.cost import prefill_work
from routing.eligible import EligibleEngines


class LookupListener(Protocol):
    """Receives where a looked-up request goes and what it really took. Repeats where the request moves to another
    engine.
    """

    def placed(self, engine: str) -> None:
        """The request was put on an engine."""
        ...

    def computed(self) -> None:
        """Its prefill is done."""
        ...

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """What the engine says it took."""
        ...

    def left(self) -> None:
        """It has left that engine, however it ended there."""
        ...

    def over(self) -> None:
        """It will not be placed again."""
        ...


class CacheHit(Struct, frozen=True, gc=False):
    """Tokens of the prompt that one engine has cached, and seconds to load those that are not on its accelerator."""

    tokens: int
    load_s: float = 0.0


class CacheLookup(Struct, frozen=True, gc=False):
    """The prompt's length in tokens, and which engines hold how much of it, by slot."""

    prompt_tokens: int
    hits: Mapping[int, CacheHit]
    reliable_slots: Container[int]
    """Engines whose events can be believed: one of them that is not in `seen` holds nothing."""
    listener: LookupListener


def cached_by_lookup(
    sight: CacheLookup,
    roster: EligibleEngines,
    shadow_tokens: Sequence[float],
    seconds_per_token: Sequence[float],
    growth: float,
) -> tuple[list[float], list[float]]:
    """Warm tokens and prefill work of every engine: as seen, or where it was not seen, as its shadow cache has it.

    Waiting for tokens from a slower medium is work like any other: it keeps the first token from coming.
    """
    prompt_tokens = float(sight.prompt_tokens)
    warm = [min(tokens, prompt_tokens) for tokens in shadow_tokens]
    work: list[float] = []
    for place, engine in enumerate(roster.engines):
        seen = sight.hits.get(engine.slot)
        if engine.slot in sight.reliable_slots:
            warm[place] = float(seen.tokens) if seen is not None else 0.0
        cold = prefill_work(prompt_tokens - warm[place], prompt_tokens, growth)
        loading = seen.load_s / seconds_per_token[place] if seen is not None and seen.load_s else 0.0
        work.append(cold + loading)
    return warm, work
