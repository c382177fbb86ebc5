"""What we have put on each engine and not yet seen finish: prefill tokens, KV tokens, running sequences.

Every charge is given back exactly once, however its request ends. Scraped load of others is kept beside our own, never
mixed into it. Time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class Charge:
    """One request on one engine. Mutable only through its ledger."""

    slot: int
    number: int
    prefill_tokens: float
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
    at_s: float = float("-inf")


NOTHING_FOREIGN = Foreign()


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
        self._in_prefill: list[OrderedDict[int, Charge]] = []
        self._head_since_s: list[float] = []
        self._turns = 0

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
            self._in_prefill.append(OrderedDict())
            self._head_since_s.append(0.0)

    def is_empty(self) -> bool:
        """Whether everything was given back."""
        return not (any(self.running) or any(self.prefill_tokens) or any(self.kv_tokens) or any(self._in_prefill))

    def charge(self, slot: int, *, prefill_tokens: float, kv_tokens: float, sequences: int, now_s: float) -> Charge:
        """Put a request on an engine."""
        self._turns += 1
        charge = Charge(slot, self._turns, prefill_tokens, kv_tokens, sequences)
        queue = self._in_prefill[slot]
        if not queue:
            self._head_since_s[slot] = now_s
        queue[charge.number] = charge
        self.prefill_tokens[slot] += prefill_tokens
        self.kv_tokens[slot] += kv_tokens
        self.running[slot] += sequences
        self.last_turn[slot] = self._turns
        return charge

    def prefill_done(self, charge: Charge, now_s: float) -> None:
        """Its first token is out: its prompt no longer stands in anybody's way."""
        if not charge.in_prefill:
            return
        charge.in_prefill = False
        slot = charge.slot
        queue = self._in_prefill[slot]
        del queue[charge.number]
        # An empty queue is exactly zero: sums of floats would keep a crumb.
        self.prefill_tokens[slot] = self.prefill_tokens[slot] - charge.prefill_tokens if queue else 0.0
        self._head_since_s[slot] = now_s

    def release(self, charge: Charge, now_s: float) -> None:
        """The request has left the engine. Safe to call again."""
        if charge.released:
            return
        self.prefill_done(charge, now_s)
        charge.released = True
        slot = charge.slot
        self.running[slot] -= charge.sequences
        self.kv_tokens[slot] = self.kv_tokens[slot] - charge.kv_tokens if self.running[slot] else 0.0

    def ahead_tokens(self, slot: int, now_s: float, seconds_per_token: float) -> float:
        """Prefill tokens a request placed now would wait for.

        The head of the queue has been worked on since it became the head, at the engine's learned rate; an engine that
        is late with it is taken to be about to finish it.
        """
        queued = self.prefill_tokens[slot]
        if not queued:
            return 0.0
        head = next(iter(self._in_prefill[slot].values()))
        return queued - min(head.prefill_tokens, (now_s - self._head_since_s[slot]) / seconds_per_token)

    def observe(self, slot: int, foreign: Foreign) -> None:
        """Take over what a scrape says others have put on an engine."""
        self.foreign[slot] = foreign
