"""Open charges of this gateway on each engine: prefill tokens, KV tokens and running sequences not yet finished.

Every charge is returned exactly once, however its request ends. Scraped external load is kept beside it, never added.
Which step of an engine another could still join is kept as charges are made. Time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Protocol

from msgspec import Struct

from routing.eligible import ColumnSelector
from routing.lockstep import StepGroups, extension_s


class AdmittedAs(Struct, frozen=True, gc=False):
    """As what a request was admitted: for peers, which count its service as their own."""

    queue: str
    """Of the engines that may serve it."""
    tier: str
    tenant: str | None
    weight: float
    """Of its tenant."""
    own_s: float
    """Its prefill on an engine that holds nothing of it."""
    answer_tokens: float
    """Expected, of all its answers together."""


class StreamObjective(Struct, frozen=True, gc=False):
    """The TPOT objective of one stream, for the listener that enforces it."""

    tpot_s: float
    """Mean seconds between tokens."""
    min_tokens: float
    """A lower bound of its output length, exceeded with probability 0.99."""
    admitted: AdmittedAs | None = None
    """None without peers."""


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
    objective: StreamObjective | None = None
    queues: bool = True
    """Whether its prefill is done here; that of a pair's decode engine is done elsewhere."""
    charged_s: float = 0.0
    unseen_tokens: float = 0.0
    """Prefill that a peer had put on the engine at about the same time, of which it was not known then."""
    extends_s: float = 0.0
    """Seconds by which its prefill stalls ranks that step together with its engine."""
    is_delayed: bool = False
    """Whether it waited for a prefill that took far longer than expected: how long it took says nothing of itself."""
    before_s: float = 0.0
    """Prefill that its engine had been given until then, its own included: what is more by now has stalled it."""


class LedgerListener(Protocol):
    """Receives every charge of every replica in the step that makes it: admission accounts decoding streams by it."""

    def on_charged(self, charge: Charge, now_s: float) -> None:
        """A charge was made. Where it is not in prefill its prefill was done before it was known here."""
        ...

    def on_prefill_done(self, charge: Charge, now_s: float) -> None:
        """Its prefill is done, or never will be."""
        ...

    def on_released(self, charge: Charge, now_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class ExternalLoad:
    """Load on an engine that is not ours, from its last scrape."""

    running: float = 0.0
    waiting: float = 0.0
    kv_tokens: float = 0.0
    at_s: float = -inf


NO_EXTERNAL_LOAD = ExternalLoad()

STEP_TOKENS = 8192.0
"""How much prefill an engine takes into one step, vLLM's usual `--max-num-batched-tokens`. A prefill that ends in a
step gets its first token when all of that step is done, so a request that joins it delays the others."""

STEP_S = 0.015
"""About how long a step takes that only decodes."""

EMPTY_QUEUE_RANK = -1e15
"""So that turns can be added to it, and it stays below any queue."""

MAX_STARTED_STEPS = 8
"""Fewer are not worth sweeping."""

SHARE_MEMORY_S = 5.0
"""How fast it is forgotten that an engine was given prefill: bursts last as long, and so do streams."""

NOTICED_STALL_S = 1.0
"""Shorter stalls make no stream late: a decision need not look at them."""

LATE_FACTOR = 1.5
"""Beyond this multiple of its expected time, and a step, a prefill was not what it was taken for: its prefix may have
been evicted."""

IN_FLIGHT_S = 0.01
"""How late peers' charges arrive, about."""

EXTERNAL_LOAD_TTL_S = 60.0
"""Load of others counts as last seen for this long when scrapes stop: stale is uncertain, not gone."""


@dataclass(slots=True)
class OpenStep:
    """The last step of an engine's queued prefill: the next request may still join it until it starts."""

    starts_s: float = -inf
    """When it should begin."""
    tokens: float = 0.0
    ending: int = 0
    """How many requests get their first token with it."""


class Ledger:
    """Per-slot lists, so that a decision over many engines reads them by index."""

    def __init__(self) -> None:
        self.prefill_tokens: list[float] = []
        """Cold tokens of requests without a first token yet."""
        self.kv_tokens: list[float] = []
        self.running: list[int] = []
        """Sequences placed, those still in prefill included."""
        self.handed_over: list[int] = []
        """Of them, those whose prefill is done by another engine."""
        self.total_prefill_s: list[float] = []
        """Seconds of prefill ever put on each engine."""
        self.last_turn: list[int] = []
        """When each engine was last chosen, as a count of choices."""
        self.external: list[ExternalLoad] = []
        self.all_kv_tokens: list[float] = []
        """Ours and foreign together, kept so on every change: decisions are many and read all engines."""
        self.all_running: list[float] = []
        self.queue_rank: list[float] = []
        """Orders engines by the prefill tokens they have not been seen to finish; those with none stand first, the one
        chosen longest ago foremost."""
        self._listener: LedgerListener | None = None
        self._in_prefill: list[OrderedDict[int, Charge]] = []
        self._expected: list[dict[int, Charge]] = []
        """Charges of peers whose prompt another engine computes, until their first token."""
        self._last_steps: list[OpenStep] = []
        self._open_steps: dict[int, OpenStep] = {}
        """Those of them that may not have begun, by slot; swept now and then of those that have."""
        self._behind_s: list[float] = []
        """Queued for prefill behind the request that is being worked on, the head of the queue."""
        self._head_until_s: list[float] = []
        """When the head should be done."""
        self._shares: list[float] = []
        """The decayed share of each engine's time that prefill took, as of its last prefill."""
        self._shares_at_s: list[float] = []
        self._before_s: list[float] = []
        """The sum of `Charge.before_s` of the sequences that run on each engine."""
        self.stalled: set[int] = set()
        """Slots whose sequences were stalled for more than `NOTICED_STALL_S`, by the mean."""
        self.step_groups: StepGroups = {}
        """Engines that step together; written by the routing state as pods come and go."""
        self._beside_s: dict[int, float] = {}
        """Seconds of prefill of other ranks that have stalled each engine which steps together with them."""
        self._turns = 0
        self.stale_from_s = inf
        """When the next external load becomes stale."""

    def __repr__(self) -> str:
        return f"<Ledger {sum(self.running)} running, {sum(self.prefill_tokens):.0f} prefill tokens>"

    def resize(self, slots: int) -> None:
        """Have room for this many slots."""
        for _ in range(slots - len(self.running)):
            self.prefill_tokens.append(0.0)
            self.kv_tokens.append(0.0)
            self.running.append(0)
            self.handed_over.append(0)
            self.total_prefill_s.append(0.0)
            self.last_turn.append(0)
            self.external.append(NO_EXTERNAL_LOAD)
            self.all_kv_tokens.append(0.0)
            self.all_running.append(0.0)
            self._in_prefill.append(OrderedDict())
            self._expected.append({})
            self._last_steps.append(OpenStep())
            self._behind_s.append(0.0)
            self._head_until_s.append(-inf)
            self._shares.append(0.0)
            self._shares_at_s.append(0.0)
            self._before_s.append(0.0)
            self.queue_rank.append(EMPTY_QUEUE_RANK)

    def attach(self, listener: LedgerListener) -> None:
        """Call `listener` with every charge from now on, in the same step: admission accounts decoding streams so."""
        self._listener = listener

    def is_empty(self) -> bool:
        """Whether everything was given back."""
        return not (any(self.running) or any(self.prefill_tokens) or any(self.kv_tokens) or any(self._in_prefill))

    def charge(
        self,
        slot: int,
        *,
        prefill_tokens: float,
        prefill_s: float,
        kv_tokens: float,
        sequences: int,
        now_s: float,
        pledge: StreamObjective | None = None,
        queues: bool = True,
        is_of_peer: bool = False,
    ) -> Charge:
        """Put a request on an engine. `prefill_s` is what its own prefill is expected to take there; one that does not
        queue only has room reserved, and delays no other. `is_of_peer`: another gateway has placed it, shortly before.
        """
        charge = Charge(slot, 0, prefill_tokens, prefill_s, kv_tokens, sequences, objective=pledge, queues=queues)
        self.put(charge, now_s, is_of_peer=is_of_peer)
        return charge

    def put(self, charge: Charge, now_s: float, *, is_of_peer: bool = False) -> None:
        """Do what `charge` does with a charge that is made already, and give it its number. One that is not in prefill
        has had its first token before it was known here: it delays no other.
        """
        slot = charge.slot
        self._turns = charge.number = turn = self._turns + 1
        charge.charged_s = now_s
        if charge.queues and charge.in_prefill:
            if is_of_peer and self._in_prefill[slot]:
                self._note_unseen(charge, now_s)
            self._enqueue(charge, now_s)
        elif not charge.queues:
            self.handed_over[slot] += charge.sequences
            if is_of_peer and charge.in_prefill:
                self._expected[slot][charge.number] = charge
        kv_tokens = self.kv_tokens[slot] = self.kv_tokens[slot] + charge.kv_tokens
        running = self.running[slot] = self.running[slot] + charge.sequences
        charge.before_s = self._given_s(slot)
        self._before_s[slot] += charge.sequences * charge.before_s
        self._note_stall(slot)
        self.last_turn[slot] = turn
        external = self.external[slot]
        self.all_kv_tokens[slot] = kv_tokens + external.kv_tokens
        self.all_running[slot] = running + external.running
        if self._listener is not None:
            try:
                self._listener.on_charged(charge, now_s)
            except BaseException:
                self.release(charge, now_s)
                raise

    def _enqueue(self, charge: Charge, now_s: float) -> None:
        slot, prefill_tokens, prefill_s = charge.slot, charge.prefill_tokens, charge.prefill_s
        if self.step_groups and (group := self.step_groups.get(slot)) is not None:
            charge.extends_s = self.extends_s(slot, prefill_s, now_s)
            self._stall_beside(charge, group)
        queue = self._in_prefill[slot]
        if queue:
            self._behind_s[slot] += prefill_s
        else:
            self._head_until_s[slot] = now_s + prefill_s
        self._lengthen(slot, prefill_tokens, prefill_s, now_s)
        queue[charge.number] = charge
        queued_tokens = self.prefill_tokens[slot] = self.prefill_tokens[slot] + prefill_tokens
        self.total_prefill_s[slot] += prefill_s
        faded = exp((self._shares_at_s[slot] - now_s) / SHARE_MEMORY_S)
        self._shares[slot] = self._shares[slot] * faded + prefill_s / SHARE_MEMORY_S
        self._shares_at_s[slot] = now_s
        self.queue_rank[slot] = queued_tokens

    def _stall_beside(self, charge: Charge, group: Sequence[int]) -> None:
        """Charge a prefill to the other ranks of its group, as far as it extends that of the group."""
        for slot in group:
            if slot != charge.slot:
                self._beside_s[slot] = self._beside_s.get(slot, 0.0) + charge.extends_s
                self._note_stall(slot)

    def _note_unseen(self, late: Charge, now_s: float) -> None:
        """Note a peer's charge on those that were made before it was known, though not before it was made."""
        for charge in reversed(self._in_prefill[late.slot].values()):
            if charge.charged_s < now_s - IN_FLIGHT_S:
                break
            charge.unseen_tokens += late.prefill_tokens

    def prefill_done(self, charge: Charge, now_s: float) -> None:
        """Its first token is out: its prompt no longer delays others."""
        if not charge.in_prefill:
            return
        charge.in_prefill = False
        if charge.queues:
            self._dequeue(charge, now_s)
        else:
            self._expected[charge.slot].pop(charge.number, None)
        if self._listener is not None:
            self._listener.on_prefill_done(charge, now_s)

    def prefill_again(self, charge: Charge, now_s: float) -> None:
        """The prefill of a peer's charge was taken to be done, and is not: it delays others again."""
        if charge.in_prefill or charge.released:
            return
        charge.in_prefill = True
        if charge.queues:
            self._enqueue(charge, now_s)
            charge.before_s += charge.prefill_s
            self._before_s[charge.slot] += charge.sequences * charge.prefill_s
        else:
            self._expected[charge.slot][charge.number] = charge
        if self._listener is not None:
            self._listener.on_charged(charge, now_s)

    def _dequeue(self, charge: Charge, now_s: float) -> None:
        slot = charge.slot
        queue = self._in_prefill[slot]
        was_head = next(iter(queue)) == charge.number
        del queue[charge.number]
        if was_head and queue:
            self._note_delay(charge, now_s)
        if not queue:
            # An empty queue is exactly zero: sums of floats would keep a crumb.
            self.prefill_tokens[slot] = self._behind_s[slot] = 0.0
            self._head_until_s[slot] = -inf
            self._replan(slot, None, now_s)
            self.queue_rank[slot] = EMPTY_QUEUE_RANK + self.last_turn[slot]
            return
        self.prefill_tokens[slot] -= charge.prefill_tokens
        head = next(iter(queue.values()))
        # The next in the queue becomes the head, or there is one less behind it.
        gone = head if was_head else charge
        self._behind_s[slot] = 0.0 if len(queue) == 1 else self._behind_s[slot] - gone.prefill_s
        if was_head:
            self._head_until_s[slot] = now_s + head.prefill_s
            self._replan(slot, head, now_s)
        self.queue_rank[slot] = self.prefill_tokens[slot]

    def _note_delay(self, head: Charge, now_s: float) -> None:
        """Note a head that took far longer than expected on all that waited for it."""
        expected_s = head.prefill_s
        began_s = self._head_until_s[head.slot] - expected_s
        step_s = STEP_TOKENS * expected_s / head.prefill_tokens if head.prefill_tokens else 0.0
        if now_s - began_s > LATE_FACTOR * expected_s + step_s:
            for behind in self._in_prefill[head.slot].values():
                behind.is_delayed = True

    def release(self, charge: Charge, now_s: float) -> None:
        """The request has left the engine. Safe to call again."""
        if charge.released:
            return
        charge.released = True
        try:
            if charge.in_prefill:
                self.prefill_done(charge, now_s)
        finally:
            slot = charge.slot
            running = self.running[slot] = self.running[slot] - charge.sequences
            if not charge.queues:
                self.handed_over[slot] -= charge.sequences
            self.kv_tokens[slot] = self.kv_tokens[slot] - charge.kv_tokens if running else 0.0
            before_s = self._before_s[slot] - charge.sequences * charge.before_s
            self._before_s[slot] = before_s if running else 0.0
            self._note_stall(slot)
            self._sum_up(slot)
        if self._listener is not None:
            self._listener.on_released(charge, now_s)

    def queued_s(self, pick: ColumnSelector, now_s: float) -> list[float]:
        """Seconds of prefill that a request placed now would wait for, on each of the engines that `pick` takes.

        The head of the queue has been worked on since it became the head; an engine that is late with it is taken to be
        about to finish it.
        """
        return [
            behind_s + until_s - now_s if until_s > now_s else behind_s
            for behind_s, until_s in zip(pick(self._behind_s), pick(self._head_until_s), strict=True)
        ]

    def _queue_s(self, slot: int, now_s: float) -> float:
        return self._behind_s[slot] + max(0.0, self._head_until_s[slot] - now_s)

    def extends_s(self, slot: int, prefill_s: float, now_s: float) -> float:
        """Return by how many seconds a prefill on an engine would stall the ranks that step together with it."""
        queues_s = [self._queue_s(other, now_s) for other in self.step_groups.get(slot, ()) if other != slot]
        return extension_s(self._queue_s(slot, now_s), prefill_s, max(queues_s)) if queues_s else 0.0

    def group_queues_s(self, now_s: float) -> dict[int, float]:
        """Return the seconds of prefill queued on each engine that steps together with others, by slot."""
        return {slot: self._queue_s(slot, now_s) for slot in self.step_groups}

    def in_step(self, slot: int, column: Sequence[float]) -> float:
        """Return the entry of an engine, or the largest of those that step together with it, of a list by slot."""
        group = self.step_groups.get(slot) if self.step_groups else None
        return column[slot] if group is None else max(column[one] for one in group)

    def prefill_shares(self, pick: ColumnSelector, now_s: float) -> list[float]:
        """Return the decayed share of time that prefill took of each engine; above 1 if overloaded."""
        return [
            share * exp((at_s - now_s) / SHARE_MEMORY_S) if share else 0.0
            for share, at_s in zip(pick(self._shares), pick(self._shares_at_s), strict=True)
        ]

    def stalls_s(self, slots: Iterable[int]) -> list[float]:
        """Return the seconds of prefill by which the sequences of each engine were stalled, or soon will be: the mean
        over those that run there, 0 for none.
        """
        if self.step_groups:
            return [self._group_stall_s(self.step_groups.get(slot, (slot,))) for slot in slots]
        running, given_s, before_s = self.running, self.total_prefill_s, self._before_s
        stalls_s = [given_s[slot] - before_s[slot] / running[slot] if running[slot] else 0.0 for slot in slots]
        return [max(0.0, stall_s) for stall_s in stalls_s]

    def stalled_since(self, charge: Charge, now_s: float) -> float:
        """Return the seconds by which prefill has stalled a sequence since it was charged: what its engine was given
        since, but for what still waits there.
        """
        slot = charge.slot
        waiting_s = self.queued_s(lambda column: column[slot : slot + 1], now_s)[0]
        return max(0.0, self._given_s(slot) - charge.before_s - waiting_s)

    def _group_stall_s(self, group: Sequence[int]) -> float:
        """Return the mean stall of all sequences of engines that step together; 0 for none."""
        running = sum(self.running[slot] for slot in group)
        sums_s = (self._given_s(slot) * self.running[slot] - self._before_s[slot] for slot in group)
        return max(0.0, sum(sums_s) / running) if running else 0.0

    def _given_s(self, slot: int) -> float:
        """Return the seconds of prefill that have ever stalled the sequences of an engine."""
        given_s = self.total_prefill_s[slot]
        return given_s + self._beside_s.get(slot, 0.0) if self._beside_s else given_s

    def _note_stall(self, slot: int) -> None:
        running = self.running[slot]
        if running and self._given_s(slot) - self._before_s[slot] / running > NOTICED_STALL_S:
            self.stalled.add(slot)
        else:
            self.stalled.discard(slot)

    def expected_kv_tokens(self, slot: int, after: Charge) -> float:
        """Return the KV tokens of peers' requests that came after a charge, and whose KV another engine is to send."""
        expected = self._expected[slot]
        return sum(charge.kv_tokens for number, charge in expected.items() if number > after.number)

    def requests_in_prefill(self, slot: int) -> int:
        """How many are in prefill on an engine, or wait for it."""
        return len(self._in_prefill[slot])

    def open_steps(self, position_of: Mapping[int, int], now_s: float) -> Sequence[tuple[int, int, float]]:
        """(Position, how many end there, tokens that still fit) of each last step that has not begun."""
        if not self._open_steps:
            return ()
        still = [each for each in self._open_steps.items() if each[1].starts_s > now_s]
        if len(self._open_steps) > 2 * len(still) + MAX_STARTED_STEPS:
            self._open_steps = dict(still)
        return [
            (position_of[slot], step.ending, STEP_TOKENS - step.tokens) for slot, step in still if slot in position_of
        ]

    def observe_external(self, slot: int, external: ExternalLoad) -> None:
        """Take over what a scrape says others have put on an engine."""
        self.external[slot] = external
        self.stale_from_s = min(self.stale_from_s, _stale_from_s(external))
        self._sum_up(slot)

    def forget_stale(self, now_s: float) -> None:
        """Remove external load that was scraped too long ago: called from `stale_from_s` on."""
        for slot, external in enumerate(self.external):
            if now_s >= _stale_from_s(external):
                self.external[slot] = NO_EXTERNAL_LOAD
                self._sum_up(slot)
        self.stale_from_s = min(map(_stale_from_s, self.external), default=inf)

    def _lengthen(self, slot: int, tokens: float, seconds: float, now_s: float) -> None:
        """Queue a prefill of `tokens` behind the others: it fills the last step, and takes further steps if needed."""
        step = self._last_steps[slot]
        pace = seconds / tokens if tokens else 0.0
        if step.starts_s <= now_s:
            # Steps that only decode are short: what comes to an engine without prefill begins with the next of them.
            soon_s = min(STEP_S, seconds) if self.running[slot] and not self._in_prefill[slot] else 0.0
            step.starts_s = max(now_s, step.starts_s + step.tokens * pace) + soon_s
            step.tokens, step.ending = 0.0, 0
        step.tokens += tokens
        if step.tokens > STEP_TOKENS:
            full = (step.tokens - 1e-6) // STEP_TOKENS
            step.tokens -= full * STEP_TOKENS
            step.ending = 0
            step.starts_s += full * STEP_TOKENS * pace
        step.ending += 1
        if step.starts_s > now_s:
            self._open_steps[slot] = step

    def _replan(self, slot: int, head: Charge | None, now_s: float) -> None:
        """A step has ended: those still in the queue fill steps from now on."""
        step, total = self._last_steps[slot], self.prefill_tokens[slot]
        if total <= STEP_TOKENS or head is None:
            step.starts_s, step.tokens, step.ending = now_s, total, 0
            return
        full = (total - 1e-6) // STEP_TOKENS
        step.tokens = total - full * STEP_TOKENS
        step.starts_s = now_s + full * STEP_TOKENS * head.prefill_s / max(head.prefill_tokens, 1.0)
        step.ending = _ending_within(self._in_prefill[slot], step.tokens)
        self._open_steps[slot] = step

    def _sum_up(self, slot: int) -> None:
        external = self.external[slot]
        self.all_kv_tokens[slot] = self.kv_tokens[slot] + external.kv_tokens
        self.all_running[slot] = self.running[slot] + external.running


def _ending_within(queue: OrderedDict[int, Charge], tokens: float) -> int:
    """Return how many requests of a queue end within its last `tokens` tokens."""
    count = 0
    for number in reversed(queue):
        if tokens <= 0:
            break
        count += 1
        tokens -= queue[number].prefill_tokens
    return count


def _stale_from_s(external: ExternalLoad) -> float:
    return inf if external is NO_EXTERNAL_LOAD else external.at_s + EXTERNAL_LOAD_TTL_S
