"""KV stores behind the engines (LMCache, Mooncake and their like): what an engine does not hold it may fetch.

A store does not report what it holds, but its engine's metrics count which share of queried tokens it had. That
share of a cold prompt is predicted to be cached, from each engine's own figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

SHARE_DECAY = 0.8
"""Of what was believed before, at every scrape that tells something."""

MIN_QUERIED_TOKENS = 1000.0
"""Asked of a store between two scrapes, before its answers say anything."""


class StoreCounters(Struct, frozen=True, gc=False):
    """What an engine's metrics have counted since it started, in tokens."""

    queried: float = 0.0
    found: float = 0.0


class KvStores:
    """The share of each engine's store, by slot; engines without a store are not in it."""

    def __init__(self) -> None:
        self.shares: dict[int, float] = {}
        self._counts: dict[int, StoreCounters] = {}

    def observe(self, slot: int, count: StoreCounters) -> None:
        """Take over a scrape. Counters that fell belong to another life of the engine."""
        before = self._counts.get(slot, StoreCounters())
        queried, found = count.queried - before.queried, count.found - before.found
        if queried < 0 or found < 0:
            self.forget(slot)
            queried, found = count.queried, count.found
        if queried < MIN_QUERIED_TOKENS:
            return
        self._counts[slot] = count
        share = min(1.0, found / queried)
        known = self.shares.get(slot)
        kept = share if known is None else SHARE_DECAY * known + (1 - SHARE_DECAY) * share
        if kept > 0.0:
            self.shares[slot] = kept

    def forget(self, slot: int) -> None:
        """Reset the slot: its engine is gone or has restarted."""
        self.shares.pop(slot, None)
        self._counts.pop(slot, None)


def with_stores(
    shares: Mapping[int, float],
    slots: Sequence[int],
    warm_tokens: Sequence[float],
    work: Sequence[float],
    prompt_tokens: float,
) -> tuple[list[float], list[float]]:
    """Return cached tokens and prefill work with what stores are expected to add to them."""
    warm, left = list(warm_tokens), list(work)
    for position, slot in enumerate(slots):
        share = shares.get(slot)
        if share:
            warm[position] += share * max(0.0, prompt_tokens - 1 - warm[position])
            left[position] *= 1 - share
    return warm, left
