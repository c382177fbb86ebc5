"""How far apart two pods are, and what a KV transfer between them takes: learned online from actual first-token times.

As with prefill (`routing.cost`) the form is a prior: a constant plus a term per byte. What is
learned is a factor on it, for each kind of link and each connector. Reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from routing.cost import RunningRatio
from routing.facts import PodFacts

TRANSFER_MEMORY = 200.0
"""Transfers of one kind that are remembered."""

FIXED_S = 0.008
"""Handshake, scheduling and one more trip through the gateway."""

SLOWER, SELDOM = 0.5, 0.02
"""A transfer's bound is a multiple of what is expected, at first half as much again, which so few may exceed."""

MAX_SLOWER = 16.0

MIN_TIMEOUT_S = 5.0
"""No transfer is given up before this: the first between two engines shakes hands for half a second, and vLLM gives
up a peer that does not answer after five."""

TIMEOUT_FACTOR = 3.0
"""A transfer is abandoned after this multiple of a typical transfer's time."""

PENALTY_HALF_LIFE_S = 30.0

MAX_PENALISED = 4096


class Link(IntEnum):
    """The nearest thing that two pods are known to have in common."""

    HOST = 0
    RACK = 1
    ZONE = 2
    FAR = 3
    """Nothing, or unknown."""


BYTES_PER_S = (40e9, 20e9, 10e9, 5e9)
"""By link, where no pod tells better: NVLink or a fast NIC within a host, RDMA beyond it."""

USABLE_SHARE = 0.6
"""Of what a link can do, what KV gets."""


def topology_keys(facts: PodFacts) -> tuple[tuple[str, ...] | None, ...]:
    """By link, equal for two pods that are joined by it; None where a pod does not say where it stands."""
    zone = facts.zone
    rack = (zone or "", facts.rack) if facts.rack else None
    return (("host", facts.host) if facts.host else None, rack, ("zone", zone) if zone else None, ())


def nearest_link(one: PodFacts, other: PodFacts) -> Link:
    """Return the nearest thing that two pods have in common."""
    common = zip(Link, topology_keys(one), topology_keys(other), strict=True)
    return next(link for link, here, there in common if here is not None and here == there)


def bytes_per_s(link: Link, prefill: PodFacts, decode: PodFacts) -> float:
    """What a link should do, before any transfer was seen."""
    ends = (prefill, decode)
    if link is Link.HOST and all(end.nvlink_gb_s for end in ends):
        return USABLE_SHARE * 1e9 * min(end.nvlink_gb_s or 0 for end in ends)
    if all(end.nic_gbit_s for end in ends):
        return USABLE_SHARE * 1e9 / 8 * min(end.nic_gbit_s or 0 for end in ends)
    return BYTES_PER_S[link]


@dataclass(slots=True)
class _Pace:
    """Of one kind of link: how many times the prior's seconds transfers take, and nearly all of them at most."""

    ratio: RunningRatio = field(default_factory=lambda: RunningRatio(TRANSFER_MEMORY))
    slowest: float = 1.0 + SLOWER

    def observe(self, ratio: float) -> None:
        is_slower = ratio > self.ratio.value * self.slowest
        moved = self.slowest + SLOWER * (1 - SELDOM if is_slower else -SELDOM)
        self.slowest = min(max(1.0, moved), MAX_SLOWER)
        self.ratio.observe(ratio)


@dataclass(slots=True)
class LinkPenalty:
    """Seconds that an engine's last stalled transfers are still held against it."""

    seconds: float = 0.0
    at_s: float = -inf

    def now(self, now_s: float) -> float:
        return self.seconds * 0.5 ** ((now_s - self.at_s) / PENALTY_HALF_LIFE_S) if self.seconds else 0.0


class TransfersUnderWay:
    """Seconds for which transfers whose KV is computed occupy the network card of each engine, out and in apart.

    An engine is taken to have a card of its own. Every slot listed has at least one transfer.
    """

    def __init__(self) -> None:
        self._out: dict[int, tuple[int, float]] = {}
        self._in: dict[int, tuple[int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._out)

    def begin(self, prefill: int, decode: int, seconds: float) -> None:
        """Note that a transfer between two engines begins."""
        for side, slot in ((self._out, prefill), (self._in, decode)):
            count, held_s = side.get(slot, (0, 0.0))
            side[slot] = count + 1, held_s + seconds

    def end(self, prefill: int, decode: int, seconds: float) -> None:
        """Note that it has come, or never will."""
        for side, slot in ((self._out, prefill), (self._in, decode)):
            count, held_s = side[slot]
            if count == 1:
                del side[slot]
            else:
                side[slot] = count - 1, held_s - seconds

    def wait_s(self, prefill: int, decode: int, ready_s: float) -> float:
        """Return the seconds that a transfer waits at the busier card when its KV is computed in `ready_s`."""
        busy_s = max(
            side[slot][1] if slot in side else 0.0 for side, slot in ((self._out, prefill), (self._in, decode))
        )
        return max(0.0, busy_s - ready_s)


class TransferCosts:
    """What is known of all links. Kinds are few: links times connectors."""

    def __init__(self) -> None:
        self.under_way = TransfersUnderWay()
        self._unseen: dict[str, int] = {}
        self._paces: dict[tuple[Link, str], _Pace] = {}
        self._distrusts: dict[int, LinkPenalty] = {}

    def begin_unseen(self, prefill: str) -> None:
        """Note that KV leaves an engine, by name, for an answer that shows no first token."""
        self._unseen[prefill] = self._unseen.get(prefill, 0) + 1

    def end_unseen(self, prefill: str) -> None:
        """Note that such an answer has ended."""
        left = self._unseen[prefill] - 1
        if left:
            self._unseen[prefill] = left
        else:
            del self._unseen[prefill]

    def unseen(self, prefill: str) -> int:
        """Return how many answers may still fetch KV from an engine whose charges for them have ended."""
        return self._unseen.get(prefill, 0)

    def seconds(self, link: Link, connector: str, prior_s: float) -> float:
        """What a transfer will take that should take `prior_s`."""
        pace = self._paces.get((link, connector))
        return prior_s if pace is None else prior_s * pace.ratio.value

    def timeout_s(self, link: Link, connector: str, prior_s: float, again_s: float) -> float:
        """After how long a transfer has stalled: when it takes far more than nearly all do, and has cost as much as
        doing the prefill again, `again_s`, would: so that in the end no more than twice the least is lost.
        """
        pace = self._paces.get((link, connector)) or _Pace()
        return max(MIN_TIMEOUT_S, again_s, TIMEOUT_FACTOR * prior_s * pace.ratio.value * pace.slowest)

    def observe(self, link: Link, connector: str, prior_s: float, took_s: float) -> None:
        """A transfer has come that should have taken `prior_s`."""
        pace = self._paces.get((link, connector))
        if pace is None:
            pace = self._paces[link, connector] = _Pace()
        pace.observe(max(took_s, 0.0) / prior_s)

    def penalty_s(self, slot: int, now_s: float) -> float:
        """Penalty in seconds of an engine whose transfers have stalled; half-life 30 s."""
        held = self._distrusts.get(slot)
        return held.now(now_s) if held is not None else 0.0

    @property
    def has_penalties(self) -> bool:
        return bool(self._distrusts)

    def penalise(self, slots: tuple[int, ...], waited_s: float, now_s: float) -> None:
        """A transfer between these engines was given up after `waited_s`. Both ends are penalised."""
        for slot in slots:
            if slot not in self._distrusts and len(self._distrusts) >= MAX_PENALISED:
                self._distrusts.clear()
            held = self._distrusts.setdefault(slot, LinkPenalty())
            held.seconds, held.at_s = held.now(now_s) + waited_s, now_s

    def clear_penalty(self, slots: tuple[int, ...]) -> None:
        """A transfer between these engines came: they are trusted again."""
        for slot in slots:
            self._distrusts.pop(slot, None)

    forget = clear_penalty
    """Reset the links: another engine is in these slots."""
