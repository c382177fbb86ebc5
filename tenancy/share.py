"""What a gateway may put on each engine beside gateways of which it receives nothing: its share of the prefill that
streams there can bear. They are missing peers, or gateways that were never linked.

Streams of TPOT objective T bear 1 - step / T seconds of prefill a second. A token bucket by engine is filled with this
gateway's share of that and drained by each charge that is known here. Shares are made from the demand that all had
published last, so those of all gateways sum to one, and a request is placed only where its bucket is not in debt:
together gateways exceed what an engine can bear by one request of each, and by what `AHEAD_S` lets the highest tier
take in advance. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_LOWER_PART, UNSEEN_COST = 0.7, 0.4
"""Of its share, what a gateway leaves to tiers below the highest while peers are missing, and how far that falls with
the part of an engine that others have: what they do is not seen, and prefill that comes in clumps stalls short answers
of the highest tier."""

UNLINKED_LOWER_PART = 0.95
"""The same of gateways that were never linked: what is left out is lost for good."""

AHEAD_S = 2.0
"""Seconds of its share that the highest tier may take in advance, on each engine."""

SAVED_S = 2.0
"""Seconds of its share that are kept where they are not used. The lower a tier, the more of it must be there."""

FIRST_DEBT_S = 0.1
"""About the prefill of one request: gateways that notice a loss at the same moment begin one after the other."""

EVEN_PART = 0.2
"""Of the shares, what is dealt out evenly: demand is known from a few requests, and one without any may get some."""


class BudgetShare:
    """The share of one gateway, of all engines alike."""

    __slots__ = ("_debt_s", "_levels", "_lower_part", "priorities", "share", "since_s", "tpot_s")

    def __init__(
        self,
        share: float,
        tpot_s: float,
        priorities: Sequence[int],
        since_s: float,
        turn: float = 0.0,
        lower_part: float | None = None,
    ) -> None:
        """`tpot_s`: the tightest TPOT objective of streams that may be anywhere on the engines; inf without any.
        `priorities`: of tiers with demand, the highest first. `turn`: this gateway's place among all, in (0, 1].
        `lower_part`: what tiers below the highest get of it; None: as while peers are missing.
        """
        self.share = share
        self.tpot_s = tpot_s
        self.priorities = priorities
        self.since_s = since_s
        self._debt_s = FIRST_DEBT_S * turn
        self._lower_part = lower_part_of(share) if lower_part is None else lower_part
        self._levels: dict[int, tuple[float, float, float]] = {}
        """By slot: seconds of prefill that are left for the highest tier, for the others, and as of when."""

    def continue_from(self, before: BudgetShare) -> None:
        """Take over what another share has left."""
        self._levels, self.since_s, self._debt_s = before._levels, before.since_s, before._debt_s

    def fill(self, slot: int, step_s: float, now_s: float) -> float:
        """Fill an engine's bucket until now, with steps that take `step_s` there. Returns the seconds of prefill that
        the others may have put on it meanwhile.
        """
        first_s, lower_s, at_s = self._levels.get(slot, (0.0, -self._debt_s, self.since_s))
        borne = max(0.0, 1.0 - step_s / self.tpot_s) * self.share
        gained_s = borne * (now_s - at_s)
        saved_s = borne * SAVED_S
        first_s, lower_s = min(first_s + gained_s, saved_s), min(lower_s + self._lower_part * gained_s, saved_s)
        self._levels[slot] = first_s, lower_s, now_s
        return gained_s * (1 - self.share) / self.share * self._lower_part

    def drain(self, slot: int, prefill_s: float) -> None:
        """Count a charge."""
        first_s, lower_s, at_s = self._levels.get(slot, (0.0, -self._debt_s, self.since_s))
        self._levels[slot] = first_s - prefill_s, lower_s - prefill_s, at_s

    def has_room(self, slot: int, step_s: float, priority: int) -> bool:
        """Whether a request may be put on an engine whose bucket was filled until now."""
        first_s, lower_s, _ = self._levels[slot]
        borne = max(0.0, 1.0 - step_s / self.tpot_s) * self.share
        higher = sum(each > priority for each in self.priorities)
        if not higher:
            return first_s >= -AHEAD_S * borne
        return lower_s >= SAVED_S * borne * (higher - 1) / len(self.priorities)


def lower_part_of(share: float) -> float:
    """Return what tiers below the highest get of a share while peers are missing."""
    return max(MIN_LOWER_PART, 1 - UNSEEN_COST * (1 - share))


PREFILL_PART = 0.5
"""Of an engine's time, about what streams leave to prefill."""

MIN_DEMAND = 1e-6
"""Engines kept in prefill by no request of the last minutes."""


def share_of_engines(even: float, demands: Sequence[tuple[float, float]], engines: int) -> float:
    """Return a share of all engines, by (own demand, that of all) of each tier, the highest first, in engines kept in
    prefill. Higher tiers are dealt out first, until nothing is left. `even` is the share without demand.
    """
    left, own, dealt = PREFILL_PART * max(engines, 1), 0.0, 0.0
    for here, in_all in demands:
        given = min(in_all, left)
        if given > 0:
            own += given * here / in_all
            dealt += given
            left -= given
    return even if dealt < MIN_DEMAND else EVEN_PART * even + (1 - EVEN_PART) * own / dealt
