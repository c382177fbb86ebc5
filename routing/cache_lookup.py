"""The result of a precise prefix-cache lookup for one request, fetched before the request is placed.

Independent of how the lookup was made; its listener is notified of the request's progress.
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
    """Engines whose events can be believed: one of them that is not in `hit` holds nothing."""
    listener: LookupListener


def cached_by_lookup(
    lookup: CacheLookup,
    eligible: EligibleEngines,
    shadow_tokens: Sequence[float],
    seconds_per_token: Sequence[float],
    growth: float,
) -> tuple[list[float], list[float]]:
    """Cached tokens and prefill work of every engine: as looked up, or from its approximate index where it was not.

    Waiting for tokens from a slower medium is work like any other: it keeps the first token from coming.
    """
    prompt_tokens = float(lookup.prompt_tokens)
    warm = [min(tokens, prompt_tokens) for tokens in shadow_tokens]
    work: list[float] = []
    for position, engine in enumerate(eligible.engines):
        hit = lookup.hits.get(engine.slot)
        if engine.slot in lookup.reliable_slots:
            warm[position] = float(hit.tokens) if hit is not None else 0.0
        cold = prefill_work(prompt_tokens - warm[position], prompt_tokens, growth)
        loading = hit.load_s / seconds_per_token[position] if hit is not None and hit.load_s else 0.0
        work.append(cold + loading)
    return warm, work
