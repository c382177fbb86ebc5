"""How much prefill each engine may still take without breaking the TPOT objective of streams that decode there.

A stream of n tokens with objective T each takes n x step + stall, where stall is the prefill of others done on its
engine meanwhile. So it has n x (T - step) seconds of stall to give: after k tokens it has earned k x (T - step) of
them, and those of its first `sure_tokens` it will earn almost surely. What an engine may take is the least that anyone
there has left, less what is queued. Kept by the ledger's events, so that others' requests count as ours do.

Sums that are constant while no request arrives or ends make this cheap: with D what the engine had done when a stream
began, C all that was ever put on it, and A(t) the integral of (1 - step / T), a stream has left
    young: sure x (T - step) + D - C,          old: (A(t) - A(begun) + D - C) x T / step,
whichever is more, so that the minimum of each kind is at the top of a heap.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

from routing.cost import CostModel, RunningRatio
from routing.ledger import Charge, Ledger
from tenancy.share import BudgetShare

SAME_STEP_S = 0.001
"""First tokens that come closer together came out of one step."""

PEER_SAME_STEP_S = 0.010
"""The same where those of peers are reported: they come late, but before the next step is done."""

STEP_MEMORY = 500.0
"""Memory of the step ratio, in streams."""

SELDOM = 0.02
"""Share of streams whose steps may be slower than assumed."""

SLOWER = 0.1
"""The initial margin beyond the mean, and how far one stream moves it at most."""


class DecodeStream:
    """One request that prefill of others can stall; before its first token, as the queue predicts it."""

    __slots__ = ("charge", "done_s", "is_stale", "number", "started_s")

    def __init__(self, number: int, charge: Charge, started_s: float | None, done_s: float) -> None:
        self.number = number
        self.charge = charge
        self.started_s = started_s
        self.done_s = done_s
        """D: prefill that the engine had done by then."""
        self.is_stale = False


class TpotClass:
    """The streams on one engine that have the same TPOT objective."""

    __slots__ = ("_allowed_s", "_at_s", "_old", "_young", "tpot_s")

    def __init__(self, tpot_s: float, now_s: float) -> None:
        self.tpot_s = tpot_s
        self._allowed_s = 0.0
        """A(t), since the lane began."""
        self._at_s = now_s
        self._young: list[tuple[float, int, DecodeStream, float]] = []
        self._old: list[tuple[float, int, DecodeStream]] = []

    def advance(self, now_s: float, step_s: float) -> None:
        self._allowed_s += (now_s - self._at_s) * (1 - step_s / self.tpot_s)
        self._at_s = now_s

    def put(self, stream: DecodeStream, sure_tokens: float, step_s: float) -> None:
        sure_s = sure_tokens * max(self.tpot_s - step_s, 0.0)
        heappush(self._young, (sure_s + stream.done_s, stream.number, stream, self._allowed_s))

    def left_s(self, charged_s: float, step_s: float) -> float:
        """Prefill that may come beyond what has been charged."""
        young, old, by_token = self._young, self._old, self.tpot_s / step_s
        while young:
            key, number, stream, allowed_s = young[0]
            if not stream.is_stale and not stream.charge.released:
                earned_s = (self._allowed_s - allowed_s + stream.done_s - charged_s) * by_token
                if stream.started_s is None or earned_s < key - charged_s:
                    break
                heappush(old, (stream.done_s - allowed_s, number, stream))
            heappop(young)
        while old and (old[0][2].is_stale or old[0][2].charge.released):
            heappop(old)
        minimum = young[0][0] - charged_s if young else inf
        return min(minimum, (self._allowed_s + old[0][0] - charged_s) * by_token) if old else minimum


class EngineDecodeState:
    """One engine."""

    __slots__ = ("charged_s", "coming", "done_s", "fresh_s", "last_started", "streams", "tpot_classes")

    def __init__(self) -> None:
        self.charged_s = 0.0
        self.done_s = 0.0
        self.tpot_classes: dict[float, TpotClass] = {}
        self.streams: dict[int, DecodeStream] = {}
        self.coming: dict[int, tuple[Charge, float]] = {}
        """Charged since the last computation, with C at that time: added to the streams by the next."""
        self.last_started: list[DecodeStream] = []
        """Whose first token came in the last step in which any did."""
        self.fresh_s = -inf

    def tpot_class(self, charge: Charge, now_s: float) -> TpotClass | None:
        """Return the class of a charge; None if it has no objective that a stall could break."""
        pledge = charge.objective
        if pledge is None or pledge.tpot_s == inf:
            return None
        lane = self.tpot_classes.get(pledge.tpot_s)
        if lane is None:
            lane = self.tpot_classes[pledge.tpot_s] = TpotClass(pledge.tpot_s, now_s)
        return lane


MIN_BORNE = 0.05
"""Seconds of prefill a second that streams bear, below which a share of them pays for no request in time."""


class DecodeStalls:
    """All engines, by slot. Listens to the ledger."""

    def __init__(self, ledger: Ledger, costs: CostModel) -> None:
        self.on_capacity_freed: Callable[[], None] = lambda: None
        """Called when an engine may have become able to take more."""
        self._ledger = ledger
        self._costs = costs
        self._steps = RunningRatio(STEP_MEMORY)
        self._slowest = 1.0 + SLOWER
        """Steps as slow as all but a few streams have seen, in multiples of the mean."""
        self._stands: dict[int, EngineDecodeState] = {}
        """Engines with requests."""
        self._numbers = count()
        self.same_step_s = SAME_STEP_S
        self.share: BudgetShare | None = None
        """What this gateway may take of each engine; None where it receives what all others place."""
        self.room_s: dict[int, float] = {}
        """What each of them could take when last computed, and -inf where charges have come since: it can only
        have become more."""

    def step_s(self, slot: int, more: int = 0) -> float:
        """Return the step time of decoding only, with `more` further sequences: an upper estimate."""
        prior = self._costs.prior
        running = self._ledger.in_step(slot, self._ledger.all_running) + more
        return (prior.step_base_s + prior.step_per_sequence_s * running) * self._steps.value * self._slowest

    def keep_to(self, share: BudgetShare, since_s: float) -> None:
        """Keep to a share of each engine, which counts what was charged after `since_s`; or to another than before."""
        before, self.share = self.share, share
        if before is not None:
            share.continue_from(before)
            return
        for slot, stand in self._stands.items():
            charges = [charge for charge, _ in stand.coming.values()] + [each.charge for each in stand.streams.values()]
            share.drain(slot, sum(charge.prefill_s for charge in charges if charge.charged_s > since_s))

    def has_share(self, slot: int, priority: int, now_s: float) -> bool:
        """Whether this gateway's share of an engine allows another request of a tier: always while it has no share.

        An engine on which nothing is known to run takes one also where its steps keep no objective even then: no share
        of it would ever be enough.
        """
        share = self.share
        if share is None:
            return True
        self._fill(share, slot, now_s)
        step_s = self.step_s(slot)
        return share.has_room(slot, step_s, priority) or (
            not self._ledger.all_running[slot] and step_s > (1 - MIN_BORNE) * share.tpot_s
        )

    def _fill(self, share: BudgetShare, slot: int, now_s: float) -> None:
        """Count what others may have put on an engine since the last call as done."""
        beside_s = share.fill(slot, self.step_s(slot), now_s)
        stand = self._stands.get(slot)
        if stand is not None and beside_s:
            stand.charged_s += beside_s
            stand.done_s += beside_s
            self.room_s[slot] = -inf

    def room_now_s(self, slot: int, now_s: float) -> float:
        """Seconds of prefill that an engine may be given now."""
        stand = self._stands.get(slot)
        if stand is None:
            return inf
        if stand.coming:
            for charge, charged_s in stand.coming.values():
                self._put(stand, charge, None, charged_s, now_s)
            stand.coming.clear()
        step_s, minimum = self.step_s(slot), inf
        for lane in stand.tpot_classes.values():
            lane.advance(now_s, step_s)
            minimum = min(minimum, lane.left_s(stand.charged_s, step_s))
        self.room_s[slot] = minimum
        return minimum

    def is_borne_beside(self, slot: int, prefill_s: float, now_s: float) -> bool:
        """Return whether the streams of ranks that step together with an engine bear this much prefill on it."""
        more_s = self._ledger.extends_s(slot, prefill_s, now_s)
        others = (one for one in self._ledger.step_groups.get(slot, ()) if one != slot)
        return all(more_s <= self.room_s.get(one, inf) or more_s <= self.room_now_s(one, now_s) for one in others)

    # -- events of the ledger ----------------------------------------------------------------------------------------

    def on_charged(self, charge: Charge, now_s: float) -> None:
        """What comes behind it will stall it: by the order of their coming."""
        slot = charge.slot
        stand = self._stands.get(slot)
        if stand is None:
            stand = self._stands[slot] = EngineDecodeState()
        if not charge.in_prefill:  # It streamed before it was known here: what it has used of its budget is unknown.
            self._put(stand, charge, now_s, stand.done_s, now_s, is_used=True)
            self.room_s[slot] = -inf
            return
        stand.charged_s += charge.prefill_s
        if self.share is not None:
            self.share.drain(slot, charge.prefill_s)
        stand.coming[charge.number] = charge, stand.charged_s
        self.room_s[slot] = -inf
        if charge.extends_s:
            self._stall_beside(charge)

    def _stall_beside(self, charge: Charge) -> None:
        """Count a prefill as done on the other ranks of its group: whoever streams there by now has been stalled."""
        for slot in self._ledger.step_groups.get(charge.slot, ()):
            if slot != charge.slot and (stand := self._stands.get(slot)) is not None:
                stand.charged_s += charge.extends_s
                stand.done_s += charge.extends_s
                self.room_s[slot] = -inf

    def on_prefill_done(self, charge: Charge, now_s: float) -> None:
        """A prefill in the same step has not stalled a stream that got its first token by that step."""
        stand = self._stands.get(charge.slot)
        if stand is None:  # The observer may have started after the prefill.
            stand = self._stands[charge.slot] = EngineDecodeState()
        stand.coming.pop(charge.number, None)
        stand.done_s += charge.prefill_s
        if now_s - stand.fresh_s > self.same_step_s:
            stand.last_started.clear()
            stand.fresh_s = now_s
        fresh = [each.charge for each in stand.last_started if not each.is_stale]
        if not charge.released:
            fresh.append(charge)
        stand.last_started = [self._put(stand, each, stand.fresh_s, stand.done_s, now_s) for each in fresh]
        if not charge.released:  # A unary response begins and ends at once: the rest is computed when it has.
            self.room_now_s(charge.slot, now_s)
        self.on_capacity_freed()

    def on_released(self, charge: Charge, now_s: float) -> None:
        stand = self._stands.get(charge.slot)
        if stand is not None:
            stand.coming.pop(charge.number, None)
            stream = stand.streams.pop(charge.number, None)
            if stream is not None:
                stream.is_stale = True
            if not stand.streams and not stand.coming:
                del self._stands[charge.slot]
                self.room_s.pop(charge.slot, None)
            elif stand.tpot_classes:
                self.room_now_s(charge.slot, now_s)
        self.on_capacity_freed()

    def _put(
        self,
        stand: EngineDecodeState,
        charge: Charge,
        started_s: float | None,
        done_s: float,
        now_s: float,
        *,
        is_used: bool = False,
    ) -> DecodeStream:
        """`is_used`: it bears what it earns from now on only."""
        before = stand.streams.get(charge.number)
        if before is not None:
            before.is_stale = True
        stream = stand.streams[charge.number] = DecodeStream(next(self._numbers), charge, started_s, done_s)
        lane = stand.tpot_class(charge, now_s)
        if lane is not None and charge.objective is not None:
            step_s = self.step_s(charge.slot)
            lane.advance(now_s, step_s)
            lane.put(stream, 0.0 if is_used else charge.objective.min_tokens, step_s)
        return stream

    # -- what streams teach ------------------------------------------------------------------------------------------

    def learn(self, charge: Charge, running: float, tokens: int, now_s: float) -> None:
        """Learn the step time of a stream that ended after `tokens`, with about `running` others, without stalls."""
        stand = self._stands.get(charge.slot)
        stream = stand.streams.get(charge.number) if stand is not None else None
        if stand is None or stream is None or stream.started_s is None or tokens < 2:
            return
        prior, steps = self._costs.prior, self._steps
        expected_s = (tokens - 1) * (prior.step_base_s + prior.step_per_sequence_s * running)
        pure_s = now_s - stream.started_s - (stand.done_s - stream.done_s)
        ratio = max(pure_s / expected_s, 0.1 * steps.value)
        is_slower = ratio > steps.value * self._slowest
        self._slowest = max(1.0, self._slowest + SLOWER * (1 - SELDOM if is_slower else -SELDOM))
        steps.observe(ratio, min(tokens / 200, 2.0))
