"""What we have put on each engine and not yet seen finish: prefill tokens, KV tokens, running sequences.

Every charge is given back exactly once, however its request ends. Scraped load of others is kept beside our own, never
mixed into it. Time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from msgspec import Struct

from routing.fleet import Pick


class Charge(Struct, gc=False):
    """One request on one engine. Mutable only through its ledger."""

    slot: int
    number: int
    prefill_tokens: float
    prefill_s: float
    """What its own prefill is expected to take."""
    kv_tokens: float
    sequences: int
    in_prefill: bool = True
    released: bool = False


@dataclass(frozen=True, slots=True)
class Foreign:
    """Load on an engine that is not ours, from its last scrape."""

    running: float = 0.0
    waiting: float = 0.0
    kv_tokens: float = 0.0
    at_s: float = -inf


NOTHING_FOREIGN = Foreign()

FOREIGN_MEMORY_S = 60.0
"""Load of others counts as last seen for this long when scrapes stop: stale is uncertain, not gone."""


class Ledger:
    """Per-slot lists, so that a decision over many engines reads them by index."""

    def __init__(self) -> None:
        self.prefill_tokens: list[float] = []
        """Cold tokens of requests without a first token yet."""
        self.kv_tokens: list[float] = []
        self.running: list[int] = []
        """Sequences placed, those still in prefill included."""
        self.last_turn: list[int] = []
        """When each engine was last chosen, as a count of choices."""
        self.foreign: list[Foreign] = []
        self.all_kv_tokens: list[float] = []
        """Ours and foreign together, kept so on every change: decisions are many and read all engines."""
        self.all_running: list[float] = []
        self._in_prefill: list[OrderedDict[int, Charge]] = []
        self._behind_tokens: list[float] = []
        """Queued for prefill behind the request that is being worked on, the head of the queue."""
        self._head_until_s: list[float] = []
        """When the head should be done."""
        self._turns = 0
        self._stale_from_s = inf

    def __repr__(self) -> str:
        return f"<Ledger {sum(self.running)} running, {sum(self.prefill_tokens):.0f} prefill tokens>"

    def reach(self, slots: int) -> None:
        """Have room for this many slots."""
        for _ in range(slots - len(self.running)):
            self.prefill_tokens.append(0.0)
            self.kv_tokens.append(0.0)
            self.running.append(0)
            self.last_turn.append(0)
            self.foreign.append(NOTHING_FOREIGN)
            self.all_kv_tokens.append(0.0)
            self.all_running.append(0.0)
            self._in_prefill.append(OrderedDict())
            self._behind_tokens.append(0.0)
            self._head_until_s.append(-inf)

    def is_empty(self) -> bool:
        """Whether everything was given back."""
        return not (any(self.running) or any(self.prefill_tokens) or any(self.kv_tokens) or any(self._in_prefill))

    def charge(
        self, slot: int, *, prefill_tokens: float, prefill_s: float, kv_tokens: float, sequences: int, now_s: float
    ) -> Charge:
        """Put a request on an engine. `prefill_s` is what its own prefill is expected to take there."""
        self._turns += 1
        charge = Charge(slot, self._turns, prefill_tokens, prefill_s, kv_tokens, sequences)
        queue = self._in_prefill[slot]
        if queue:
            self._behind_tokens[slot] += prefill_tokens
        else:
            self._head_until_s[slot] = now_s + prefill_s
        queue[charge.number] = charge
        self.prefill_tokens[slot] += prefill_tokens
        self.kv_tokens[slot] += kv_tokens
        self.running[slot] += sequences
        self.last_turn[slot] = self._turns
        self._sum_up(slot)
        return charge

    def prefill_done(self, charge: Charge, now_s: float) -> None:
        """Its first token is out: its prompt no longer stands in anybody's way."""
        if not charge.in_prefill:
            return
        charge.in_prefill = False
        slot = charge.slot
        queue = self._in_prefill[slot]
        was_head = next(iter(queue)) == charge.number
        del queue[charge.number]
        # An empty queue is exactly zero: sums of floats would keep a crumb.
        self.prefill_tokens[slot] = self.prefill_tokens[slot] - charge.prefill_tokens if queue else 0.0
        head = next(iter(queue.values()), None)
        self._behind_tokens[slot] = self.prefill_tokens[slot] - head.prefill_tokens if head else 0.0
        if was_head:
            self._head_until_s[slot] = now_s + head.prefill_s if head else -inf

    def release(self, charge: Charge, now_s: float) -> None:
        """The request has left the engine. Safe to call again."""
        if charge.released:
            return
        self.prefill_done(charge, now_s)
        charge.released = True
        slot = charge.slot
        self.running[slot] -= charge.sequences
        self.kv_tokens[slot] = self.kv_tokens[slot] - charge.kv_tokens if self.running[slot] else 0.0
        self._sum_up(slot)

    def ahead_tokens(self, pick: Pick, now_s: float, seconds_per_token: Sequence[float]) -> list[float]:
        """Prefill tokens that a request placed now would wait for, on each of the engines that `pick` takes.

        The head of the queue has been worked on since it became the head; an engine that is late with it is taken to be
        about to finish it.
        """
        return [
            behind + (until_s - now_s) / pace if until_s > now_s else behind
            for behind, until_s, pace in zip(
                pick(self._behind_tokens), pick(self._head_until_s), seconds_per_token, strict=True
            )
        ]

    def observe(self, slot: int, foreign: Foreign) -> None:
        """Take over what a scrape says others have put on an engine."""
        self.foreign[slot] = foreign
        self._stale_from_s = min(self._stale_from_s, _stale_from_s(foreign))
        self._sum_up(slot)

    def forget_stale(self, now_s: float) -> None:
        """Believe no longer what was scraped too long ago."""
        if now_s < self._stale_from_s:
            return
        for slot, foreign in enumerate(self.foreign):
            if now_s >= _stale_from_s(foreign):
                self.foreign[slot] = NOTHING_FOREIGN
                self._sum_up(slot)
        self._stale_from_s = min(map(_stale_from_s, self.foreign), default=inf)

    def _sum_up(self, slot: int) -> None:
        foreign = self.foreign[slot]
        self.all_kv_tokens[slot] = self.kv_tokens[slot] + foreign.kv_tokens
        self.all_running[slot] = self.running[slot] + foreign.running


def _stale_from_s(foreign: Foreign) -> float:
    return inf if foreign is NOTHING_FOREIGN else foreign.at_s + FOREIGN_MEMORY_S
