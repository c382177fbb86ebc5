"""The engines that may serve one model, laid out for decisions, and the shortlist of a large fleet.

`EligibleEngines` is a value: the fleet makes one at the first request for a model and another when a pod has changed.
The shortlist keeps a decision over a thousand engines as cheap as over a hundred: what it leaves out holds no more of
the prompt than some engine with a shorter queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Protocol, TypeVar

from routing.facts import PromptLengths, Role
from routing.pods import Engine, Pod, ProviderGrant


class PairingFallback(StrEnum):
    """Why an attempt was not, or not completely, served by a pair. A closed list: values of metrics and receipts."""

    NO_PREFILL_POD = "no_prefill_pod"
    """No prefill engine is ready: a decode engine prefilled too."""
    NO_DECODE_POD = "no_decode_pod"
    """No decode engine is ready: a prefill engine answered."""
    PREFILL_FAILED = "prefill_failed"
    """The prefill pod was unreachable, rejected the request, or failed."""
    PREFILL_SLOW = "prefill_slow"
    """The prefill took far longer than predicted."""
    UNFIT_PARAMS = "unfit_params"
    """The prefill pod returned KV parameters that cannot be sent to another engine."""
    TRANSFER_STALLED = "transfer_stalled"
    """The KV cache did not arrive at the decode pod in time."""
    TRANSFER_FAILED = "transfer_failed"
    """The decode pod failed to fetch the KV cache."""
    DECODE_FAILED = "decode_failed"
    """The decode pod was lost before its first token."""


V = TypeVar("V")


class ColumnSelector(Protocol):
    """Takes the entries of some engines, in their order, out of a list that has one entry per slot."""

    def __call__(self, column: Sequence[V], /) -> Sequence[V]: ...


@dataclass(frozen=True, slots=True)
class EligibleEngines:
    """The engines that may serve one model now, in a fixed order, with what a decision needs to index them."""

    engines: tuple[Engine, ...]
    slots: tuple[int, ...]
    select: ColumnSelector
    mask: int
    position_of: Mapping[int, int]
    """Slot to position in `engines`."""
    ready_since_s: tuple[float, ...]
    kv_capacity: tuple[float, ...]
    """KV tokens each engine can hold; infinite if the engine has not reported it."""
    min_kv_capacity: float
    newest_since_s: float
    block_tokens: int
    """A prefix is reused in whole KV blocks; the largest of the engines' counts for all of them."""
    is_adapter: bool = False
    """Whether the model is a LoRA adapter on any of them."""
    has_prefillers: bool = False
    """Whether other engines may prefill for some of them."""
    fallback: PairingFallback | None = None
    """Why they answer, or prefill, though they are not there for it."""
    prompts: tuple[PromptLengths, ...] = ()
    """For which prompts each was put up; empty where all are for any."""
    has_decode_engines: bool = False
    """Whether the role of some of them is `decode`."""
    spill_ranks: tuple[int, ...] = ()
    """The rank of each; empty where all have the same."""
    distances_s: tuple[float, ...] = ()
    """Seconds of a round trip to each; empty where none is far."""
    grants: Mapping[str, ProviderGrant] = field(default_factory=dict)
    """What a request needs for the pods of providers among them, by URL; empty where all are of the fleet."""

    def positions(self, mask: int) -> Iterator[int]:
        """Positions of the engines in a mask."""
        while mask:
            lowest = mask & -mask
            yield self.position_of[lowest.bit_length() - 1]
            mask ^= lowest

    def narrowed_to(self, places: Sequence[int]) -> EligibleEngines:
        """Some of the same engines, in the order given; two or more."""
        narrow = itemgetter(*places)
        slots: tuple[int, ...] = narrow(self.slots)
        mask = 0
        for slot in slots:
            mask |= 1 << slot
        return EligibleEngines(
            narrow(self.engines),
            slots,
            itemgetter(*slots),
            mask,
            position_of=dict(zip(slots, range(len(slots)), strict=True)),
            ready_since_s=narrow(self.ready_since_s),
            kv_capacity=narrow(self.kv_capacity),
            min_kv_capacity=self.min_kv_capacity,
            newest_since_s=self.newest_since_s,
            block_tokens=self.block_tokens,
            is_adapter=self.is_adapter,
            has_prefillers=self.has_prefillers,
            fallback=self.fallback,
            prompts=narrow(self.prompts) if self.prompts else (),
            has_decode_engines=self.has_decode_engines,
            grants=self.grants,
            spill_ranks=narrow(self.spill_ranks) if self.spill_ranks else (),
            distances_s=narrow(self.distances_s) if self.distances_s else (),
        )

    def forbidden_to(self, granted: frozenset[ProviderGrant]) -> frozenset[str]:
        """Return the URLs of providers' pods among them that these grants do not cover."""
        return frozenset(url for url, grant in self.grants.items() if grant not in granted)

    def excluding(self, pods: frozenset[str]) -> EligibleEngines:
        """The same roster less the engines of some pods."""
        members = zip(self.engines, self.ready_since_s, strict=True)
        kept = ((engine, since) for engine, since in members if engine.pod not in pods)
        fewer = make_eligible(kept, is_adapter=self.is_adapter)
        prompts = dict(zip(self.slots, self.prompts, strict=True)) if self.prompts else {}
        ranks = dict(zip(self.slots, self.spill_ranks, strict=True)) if self.spill_ranks else {}
        distances_s = dict(zip(self.slots, self.distances_s, strict=True)) if self.distances_s else {}
        return replace(
            fewer,
            has_prefillers=self.has_prefillers,
            fallback=self.fallback,
            grants=self.grants,
            prompts=tuple(prompts[slot] for slot in fewer.slots) if prompts else (),
            spill_ranks=tuple(ranks[slot] for slot in fewer.slots) if ranks else (),
            distances_s=tuple(distances_s[slot] for slot in fewer.slots) if distances_s else (),
        )


NO_RANKS: Mapping[str, int] = {}


def engines_of(
    members: Sequence[tuple[Engine, Pod]], model: str, pool_ranks: Mapping[str, int] = NO_RANKS
) -> EligibleEngines:
    """A roster of (engine, its pod), for a model that all of them serve. `pool_ranks`: of pods that state no rank."""
    is_adapter = any(model in pod.adapters for _, pod in members)
    eligible = make_eligible(((engine, pod.ready_since_s) for engine, pod in members), is_adapter=is_adapter)
    prompts = tuple(pod.facts.prompts for _, pod in members)
    if any(each is not PromptLengths.ANY for each in prompts):
        eligible = replace(eligible, prompts=prompts)
    grants = {pod.url: (pod.provider, pod.region or "", model) for _, pod in members if pod.provider is not None}
    if grants:
        eligible = replace(eligible, grants=grants)
    distances_s = tuple(pod.distance_s for _, pod in members)
    if any(distances_s):
        eligible = replace(eligible, distances_s=distances_s)
    ranks = tuple(
        pod.facts.spill_rank if pod.facts.spill_rank is not None else pool_ranks.get(pod.pool_label, 0)
        for _, pod in members
    )
    return replace(eligible, spill_ranks=ranks) if len(set(ranks)) > 1 else eligible


def make_eligible(members: Iterable[tuple[Engine, float]], *, is_adapter: bool) -> EligibleEngines:
    """A roster of (engine, when its pod became ready)."""
    pairs = tuple(members)
    engines = tuple(engine for engine, _ in pairs)
    slots = tuple(engine.slot for engine in engines)
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    ready_since_s = tuple(since for _, since in pairs)
    kv_capacity = tuple(float(engine.kv_tokens or inf) for engine in engines)
    return EligibleEngines(
        engines,
        slots,
        _picking(slots),
        mask,
        position_of={slot: position for position, slot in enumerate(slots)},
        ready_since_s=ready_since_s,
        kv_capacity=kv_capacity,
        min_kv_capacity=min(kv_capacity, default=inf),
        newest_since_s=max(ready_since_s, default=-inf),
        block_tokens=max((engine.block_tokens or 1 for engine in engines), default=1),
        is_adapter=is_adapter,
        has_decode_engines=any(engine.role is Role.DECODE for engine in engines),
    )


def _picking(slots: tuple[int, ...]) -> ColumnSelector:
    """Select with a list comprehension's speed in C; contiguous slots are a slice."""
    run = slice(slots[0], slots[0] + len(slots)) if slots else slice(0)
    if slots == tuple(range(run.start or 0, run.stop)):
        return itemgetter(run)
    return itemgetter(*slots)


MAX_FULLY_SCORED = 48
"""Fleets of at most this many engines are scored in full."""

SHORTEST_QUEUES = 16
"""Of all, and of every group that holds equally much."""


def shortlist(
    eligible: EligibleEngines, walked: Sequence[tuple[int, int]], queue_rank: Sequence[float], session_at: int | None
) -> list[int]:
    """Positions in the roster, in order.

    `walked`: (mask of engines, cached size) pairs; `queue_rank`: smaller means a shorter queue.
    """
    shortest_queue = sorted(range(len(queue_rank)), key=queue_rank.__getitem__)
    places = set(shortest_queue[:SHORTEST_QUEUES])
    for mask, _ in walked:
        holders = mask.bit_count()
        if holders <= SHORTEST_QUEUES:
            places.update(eligible.positions(mask))
        elif 2 * holders < len(queue_rank):
            # Of what most hold, some with the shortest queues hold it too.
            places.update(islice(_holders(mask, eligible.slots, shortest_queue), SHORTEST_QUEUES))
    if session_at is not None:
        places.add(session_at)
    return sorted(places)


def _holders(mask: int, slots: Sequence[int], places: Iterable[int]) -> Iterator[int]:
    return (position for position in places if mask >> slots[position] & 1)
