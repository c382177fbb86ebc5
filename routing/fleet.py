"""All pods and engines known now, and which of them may be chosen for a model.

One writer (the gateway's watcher) puts and removes whole pods as values; a decision reads a roster that is never half
written. Knows nothing of load or warmth, only of what exists and whether it may be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from operator import itemgetter
from typing import Protocol, TypeVar

from routing.facts import NO_FACTS, PodFacts, Prompts, Role
from routing.fallback import Fallback

V = TypeVar("V")

RosterKey = tuple[str, frozenset[str] | None]


class Standing(StrEnum):
    """Where a pod is in its life. Only `READY` pods are chosen, and where none is left, `DOUBTED` ones."""

    STARTING = "starting"
    READY = "ready"
    DOUBTED = "doubted"
    """Requests have failed there, though it is found well when it is asked: better than nobody."""
    UNREADY = "unready"
    BROKEN = "broken"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Engine:
    """One scheduler with one KV cache. `slot` is its place in every per-engine list and bit mask while it lives."""

    slot: int
    pod: str
    rank: int | None = None
    """Data-parallel rank to ask for, None where the pod has a single engine."""
    role: Role = Role.EITHER
    kv_tokens: int | None = None
    """Tokens its KV cache holds, None until the pod has said so."""
    block_tokens: int | None = None

    @property
    def name(self) -> str:
        return self.pod if self.rank is None else f"{self.pod}#{self.rank}"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model as a pod lists it."""

    name: str
    root: str | None = None
    parent: str | None = None
    """The base model, where this is a LoRA adapter."""
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One vLLM server behind one HTTP address, as last seen."""

    url: str
    standing: Standing = Standing.STARTING
    models: frozenset[str] = frozenset()
    """Names it answers to, adapters included."""
    adapters: frozenset[str] = frozenset()
    """Those of `models` that are LoRA adapters."""
    cards: tuple[ModelCard, ...] = ()
    """The same as the pod lists them."""
    pool: str | None = None
    """The configured pool it was discovered for, where there is one."""
    region: str | None = None
    """Where it stands, None where nobody has said so: then it is in no region that anybody asks for."""
    takes_priority: bool = False
    """Whether its scheduler goes by priorities; one that does not may refuse a request that has one."""
    facts: PodFacts = NO_FACTS
    """What anybody has said of it beyond all that."""
    engines: tuple[Engine, ...] = ()
    ready_since_s: float = 0.0


class Pick(Protocol):
    """Takes the entries of some engines, in their order, out of a list that has one entry per slot."""

    def __call__(self, column: Sequence[V], /) -> Sequence[V]: ...


@dataclass(frozen=True, slots=True)
class Roster:
    """The engines that may serve one model now, in a fixed order, with what a decision needs to index them."""

    engines: tuple[Engine, ...]
    slots: tuple[int, ...]
    pick: Pick
    mask: int
    place_of: Mapping[int, int]
    """Slot to position in `engines`."""
    ready_since_s: tuple[float, ...]
    kv_capacity: tuple[float, ...]
    """Tokens each holds; without bound where an engine has not said so."""
    least_kv_capacity: float
    newest_since_s: float
    block_tokens: int
    """A prefix is reused in whole KV blocks; the largest of the engines' counts for all of them."""
    is_adapter: bool = False
    """Whether the model is a LoRA adapter on any of them."""
    has_prefillers: bool = False
    """Whether other engines may prefill for some of them."""
    fallback: Fallback | None = None
    """Why they answer, or prefill, though they are not there for it."""
    prompts: tuple[Prompts, ...] = ()
    """For which prompts each was put up; empty where all are for any."""

    def places(self, mask: int) -> Iterator[int]:
        """Positions of the engines in a mask."""
        while mask:
            lowest = mask & -mask
            yield self.place_of[lowest.bit_length() - 1]
            mask ^= lowest

    def only(self, places: Sequence[int]) -> Roster:
        """Some of the same engines, in the order given; two or more."""
        narrow = itemgetter(*places)
        slots: tuple[int, ...] = narrow(self.slots)
        mask = 0
        for slot in slots:
            mask |= 1 << slot
        return Roster(
            narrow(self.engines),
            slots,
            itemgetter(*slots),
            mask,
            place_of=dict(zip(slots, range(len(slots)), strict=True)),
            ready_since_s=narrow(self.ready_since_s),
            kv_capacity=narrow(self.kv_capacity),
            least_kv_capacity=self.least_kv_capacity,
            newest_since_s=self.newest_since_s,
            block_tokens=self.block_tokens,
            is_adapter=self.is_adapter,
            has_prefillers=self.has_prefillers,
            fallback=self.fallback,
            prompts=narrow(self.prompts) if self.prompts else (),
        )

    def without(self, pods: frozenset[str]) -> Roster:
        """The same roster less the engines of some pods."""
        members = zip(self.engines, self.ready_since_s, strict=True)
        kept = ((engine, since) for engine, since in members if engine.pod not in pods)
        fewer = make_roster(kept, is_adapter=self.is_adapter)
        prompts = dict(zip(self.slots, self.prompts, strict=True)) if self.prompts else {}
        return replace(
            fewer,
            has_prefillers=self.has_prefillers,
            fallback=self.fallback,
            prompts=tuple(prompts[slot] for slot in fewer.slots) if prompts else (),
        )


def make_roster(members: Iterable[tuple[Engine, float]], *, is_adapter: bool) -> Roster:
    """A roster of (engine, when its pod became ready)."""
    pairs = tuple(members)
    engines = tuple(engine for engine, _ in pairs)
    slots = tuple(engine.slot for engine in engines)
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    ready_since_s = tuple(since for _, since in pairs)
    kv_capacity = tuple(float(engine.kv_tokens or inf) for engine in engines)
    return Roster(
        engines,
        slots,
        _picking(slots),
        mask,
        place_of={slot: place for place, slot in enumerate(slots)},
        ready_since_s=ready_since_s,
        kv_capacity=kv_capacity,
        least_kv_capacity=min(kv_capacity, default=inf),
        newest_since_s=max(ready_since_s, default=-inf),
        block_tokens=max((engine.block_tokens or 1 for engine in engines), default=1),
        is_adapter=is_adapter,
    )


def _picking(slots: tuple[int, ...]) -> Pick:
    """A list comprehension at the speed of C; slots that stand in one run are a slice."""
    run = slice(slots[0], slots[0] + len(slots)) if slots else slice(0)
    if slots == tuple(range(run.start or 0, run.stop)):
        return itemgetter(run)
    return itemgetter(*slots)


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What a pod says of one of its engines before a slot is given to it."""

    rank: int | None = None
    role: Role = Role.EITHER
    kv_tokens: int | None = None
    block_tokens: int | None = None


def _prefills(member: tuple[Engine, Pod]) -> bool:
    """Whether an engine may prefill for another."""
    engine, pod = member
    return pod.facts.kv_connector is not None and engine.role is not Role.DECODE


def _roster_of(members: Sequence[tuple[Engine, Pod]], model: str) -> Roster:
    is_adapter = any(model in pod.adapters for _, pod in members)
    roster = make_roster(((engine, pod.ready_since_s) for engine, pod in members), is_adapter=is_adapter)
    prompts = tuple(pod.facts.prompts for _, pod in members)
    return replace(roster, prompts=prompts) if any(each is not Prompts.ANY for each in prompts) else roster


class Fleet:
    """Pods by URL. Slots are given to engines when they appear and taken back when their pod is removed."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._free_slots: list[int] = []
        self._slots_made = 0
        self._rosters: dict[RosterKey, Roster] = {}
        self._prefill_rosters: dict[RosterKey, Roster] = {}
        self._last_resorts: dict[RosterKey, Roster] = {}
        self.version = 0
        """Another whenever a pod is put, removed or has lost its cache."""
        self.doubts: Mapping[str, str] = {}
        """Engines whose KV events are followed, by name, and why these do not decide; empty where they do."""
        self._engines: dict[str, Engine] = {}
        self._assumed: dict[tuple[str, int | None], Role] = {}
        """Roles that engines were given here, by pod and rank: they stand above what their pods say."""

    def __repr__(self) -> str:
        ready = sum(pod.standing is Standing.READY for pod in self._pods.values())
        return f"<Fleet {ready} of {len(self._pods)} pods ready>"

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._pods.values())

    @property
    def slot_count(self) -> int:
        """How long a per-slot list has to be."""
        return self._slots_made

    def pod(self, url: str) -> Pod | None:
        return self._pods.get(url)

    def engine(self, name: str) -> Engine | None:
        """An engine by its name."""
        if not self._engines:
            self._engines = {engine.name: engine for pod in self._pods.values() for engine in pod.engines}
        return self._engines.get(name)

    def put(self, pod: Pod) -> None:
        """Add a pod or replace what is known of it. Its engines keep their slots: change them with `reshape`."""
        self._pods[pod.url] = pod
        self._forget_rosters()

    def reshape(self, url: str, shapes: Iterable[EngineShape]) -> tuple[int, ...]:
        """Give a pod the engines it says it has. Returns the slots that are freed, for the caller to forget."""
        pod = self._pods[url]
        known = {engine.rank: engine for engine in pod.engines}
        engines = []
        for shape in shapes:
            old = known.pop(shape.rank, None)
            slot = old.slot if old else self._take_slot()
            role = self._assumed.get((url, shape.rank), shape.role)
            engines.append(Engine(slot, url, shape.rank, role, shape.kv_tokens, shape.block_tokens))
        self.put(replace(pod, engines=tuple(engines)))
        return tuple(engine.slot for engine in known.values())

    def assume(self, name: str, role: Role) -> None:
        """Give an engine another role than its pod says, for as long as the pod is there."""
        engine = self.engine(name)
        if engine is None or engine.role is role:
            return
        self._assumed[engine.pod, engine.rank] = role
        pod = self._pods[engine.pod]
        self.put(replace(pod, engines=tuple(replace(one, role=role) if one is engine else one for one in pod.engines)))

    def remove(self, url: str) -> tuple[int, ...]:
        """Take a pod out. Returns the slots that are freed, for the caller to forget."""
        self._assumed = {place: role for place, role in self._assumed.items() if place[0] != url}
        pod = self._pods.pop(url, None)
        self._forget_rosters()
        return tuple(engine.slot for engine in pod.engines) if pod else ()

    def roster(self, model: str, regions: frozenset[str] | None = None) -> Roster:
        """The engines that may answer for `model` now, in one of these regions or anywhere; empty where there is none.

        Engines that are there for prefill only are among them where there are no others.
        """
        roster = self._rosters.get((model, regions))
        if roster is None:
            members = [each for each in self._ready(model, regions) if each[0].role is not Role.PREFILL]
            if members:
                others = any(map(_prefills, self._ready(model, regions)))
                wants_others = not others and any(engine.role is Role.DECODE for engine, _ in members)
                roster = replace(
                    _roster_of(members, model),
                    has_prefillers=others,
                    fallback=Fallback.NO_PREFILL_POD if wants_others else None,
                )
                self._keep(self._rosters, model, regions, roster)
            else:
                roster = self.prefill_roster(model, regions, at_large=True)
        return roster

    def prefill_roster(self, model: str, regions: frozenset[str] | None = None, *, at_large: bool = False) -> Roster:
        """The engines that may prefill for others now; `at_large`, all that are there for prefill, to answer as a last
        resort.
        """
        kept = self._last_resorts if at_large else self._prefill_rosters
        roster = kept.get((model, regions))
        if roster is None:
            ready = self._ready(model, regions)
            members = [each for each in ready if (each[0].role is Role.PREFILL if at_large else _prefills(each))]
            roster = replace(_roster_of(members, model), fallback=Fallback.NO_DECODE_POD if at_large else None)
            self._keep(kept, model, regions, roster)
        return roster

    def serving(self, model: str, regions: frozenset[str] | None = None) -> list[Pod]:
        """The pods that may serve `model` now."""
        return [pod for pod in self._serving(model, regions) if pod.standing is Standing.READY]

    def doubted_roster(self, model: str, regions: frozenset[str] | None = None) -> Roster:
        """The engines whose pods fail requests and look well: for whom nobody else is left."""
        doubted = [pod for pod in self._serving(model, regions) if pod.standing is Standing.DOUBTED]
        return _roster_of([(engine, pod) for pod in doubted for engine in pod.engines], model)

    def _ready(self, model: str, regions: frozenset[str] | None) -> list[tuple[Engine, Pod]]:
        return [(engine, pod) for pod in self.serving(model, regions) for engine in pod.engines]

    def _keep(
        self, rosters: dict[RosterKey, Roster], model: str, regions: frozenset[str] | None, roster: Roster
    ) -> None:
        """Only names that exist are remembered: a client cannot grow this table by inventing models."""
        if self.knows(model):
            rosters[model, regions] = roster

    def _forget_rosters(self) -> None:
        self.version += 1
        self._engines.clear()
        for rosters in (self._rosters, self._prefill_rosters, self._last_resorts):
            rosters.clear()

    def knows(self, model: str, regions: frozenset[str] | None = None) -> bool:
        """Whether any pod there, ready or not, has said that it serves `model`."""
        return next(self._serving(model, regions), None) is not None

    def _serving(self, model: str, regions: frozenset[str] | None) -> Iterator[Pod]:
        for pod in self._pods.values():
            if model in pod.models and (regions is None or pod.region in regions):
                yield pod

    def models(self, regions: frozenset[str] | None = None) -> dict[str, tuple[Pod, ...]]:
        """Model name to the pods there that serve it, ready or not."""
        table: dict[str, tuple[Pod, ...]] = {}
        for pod in self._pods.values():
            if regions is not None and pod.region not in regions:
                continue
            for model in sorted(pod.models):
                table[model] = (*table.get(model, ()), pod)
        return table

    def recycle(self, slot: int) -> None:
        """Let a freed slot be given out again, once nothing charged to it is left."""
        self._free_slots.append(slot)

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._slots_made += 1
        return self._slots_made - 1
