"""Shows a router what each simulated engine holds, exactly and at once: the most that a precise index can be worth.

A real index learns the same from KV events, later and over a network. Prompts sent to an engine count as held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from routing.cache_lookup import CacheHit, CacheLookup
from routing.decision.router import Router
from routing.request import Request
from simulator.sequence import Sequence
from simulator.virtual_pod import VirtualPod


class KnownCaches:
    """The caches of all engines, looked up for each request before it is placed."""

    def __init__(self, router: Router, pods: Mapping[str, VirtualPod], block_tokens: int) -> None:
        """`block_tokens` is the length of an engine's blocks."""
        self._router = router
        self._pods = pods
        self._block_tokens = block_tokens
        self._in_prefill: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
        """Blocks of the prompts that each engine has been sent and has not computed yet, by request."""

    def known_to(self, request: Request, sequence: Sequence) -> Request:
        """Return the request with what every engine holds of its prompt, the last token excepted."""
        reusable = sequence.blocks[: (sequence.prompt_tokens - 1) // self._block_tokens]
        seen: dict[int, CacheHit] = {}
        known: set[int] = set()
        for url, pod in self._pods.items():
            held = pod.held_blocks(reusable)
            listed = self._router.fleet.pod(url)
            for engine in listed.engines if listed else ():
                known.add(engine.slot)
                coming = (_shared_length(reusable, other) for other in self._in_prefill[engine.name].values())
                if blocks := max(held, max(coming, default=0)):
                    seen[engine.slot] = CacheHit(blocks * self._block_tokens)
        watch = _Placed(sequence, self._in_prefill)
        return msgspec.structs.replace(request, lookup=CacheLookup(sequence.prompt_tokens, seen, known, watch))


class _Placed:
    """Keeps a prompt among those in prefill from its placement until it is computed or gone."""

    def __init__(self, sequence: Sequence, in_prefill: Mapping[str, dict[str, tuple[int, ...]]]) -> None:
        self._sequence = sequence
        self._in_prefill = in_prefill
        self._engine = ""

    def placed(self, engine: str) -> None:
        self._engine = engine
        self._in_prefill[engine][self._sequence.sequence_id] = self._sequence.blocks

    def computed(self) -> None:
        self._in_prefill[self._engine].pop(self._sequence.sequence_id, None)

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Nothing is learned: the caches themselves are looked up."""

    def left(self) -> None:
        self.computed()

    def over(self) -> None:
        """Nothing is kept of a request that has left its engine."""


def _shared_length(one: Iterable[int], other: Iterable[int]) -> int:
    """Return how many leading blocks are equal."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
