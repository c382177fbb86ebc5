"""Engines that step together: ranks of a data-parallel group with expert parallelism.

Every step of such a group takes as long as that of its busiest rank, and ranks without requests take part in it. So
prefill on one rank stalls the streams of all, prefill on two ranks in the same steps takes no longer than the longer of
both, and a sequence makes steps longer only where it is put on the busiest rank. Pure: load in, columns of
`routing.candidates` out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from math import ceil

from msgspec import Struct


class _GroupLoad(Struct, frozen=True, gc=False):
    total: float
    busiest: float
    max_slot: int
    """Slot with the longest queue."""
    max_queued_s: float
    second_s: float

    def beside_s(self, slot: int) -> float:
        return self.second_s if slot == self.max_slot else self.max_queued_s


def _load_of(group: Sequence[int], queued_s: Mapping[int, float], running: Sequence[float]) -> _GroupLoad:
    sequences = [running[slot] for slot in group]
    first, second = nlargest(2, group, key=queued_s.__getitem__)
    return _GroupLoad(sum(sequences), max(sequences), first, queued_s[first], queued_s[second])


StepGroups = Mapping[int, tuple[int, ...]]
"""By slot of an engine that steps together with others, the slots of all of them, its own included. Members of one
group have the same tuple."""


class StepColumns(Struct, frozen=True, gc=False):
    """What groups change for the candidates of one decision, by position."""

    lockstep_s: list[float]
    """Seconds that a first token waits for the prefill of other ranks."""
    stalled: list[float]
    """Sequences that each second of own prefill stalls, those of other ranks included."""
    slowed: list[float]
    """Sequences whose steps grow with one sequence more."""
    in_step: list[float]
    """Sequences of the busiest rank."""


def extension_s(ahead_s: float, own_s: float, beside_s: float) -> float:
    """Return by how many seconds `own_s` of prefill behind `ahead_s` extends that of a group whose other ranks have at
    most `beside_s` queued: 0 where theirs lasts longer.
    """
    return max(0.0, min(own_s, ahead_s + own_s - beside_s))


def wait_s(ahead_s: float, own_s: float, beside_s: float, full_step_s: float) -> float:
    """Return the seconds that a first token waits for other ranks, whose prefill lasts `beside_s`.

    While it lasts steps are as long as a full one: half of one on average before the first of ours, then all of each.
    """
    steps = max(1, ceil((ahead_s + own_s) / full_step_s))
    joined_s = full_step_s / 2 if not ahead_s else 0.0
    return min(beside_s, joined_s + max(0.0, steps * full_step_s - ahead_s - own_s))


def step_columns(
    groups: StepGroups,
    slots: Sequence[int],
    *,
    ahead_s: Sequence[float],
    own_s: Sequence[float],
    full_step_s: Sequence[float],
    queued_s: Mapping[int, float],
    running: Sequence[float],
) -> StepColumns:
    """Return the columns of candidates in these `slots`.

    `ahead_s`, `own_s` and `full_step_s` are by position: seconds queued, of the request's own prefill, and of a step
    filled with prefill. `queued_s` and `running` are by slot, for all slots of the groups.
    """
    loads: dict[tuple[int, ...], _GroupLoad] = {}
    columns = StepColumns([], [], [], [])
    for slot, ahead, own, full_s in zip(slots, ahead_s, own_s, full_step_s, strict=True):
        group = groups.get(slot)
        here = running[slot]
        if group is None:
            lockstep_s, stalled, slowed, in_step = 0.0, here, here, here
        else:
            load = loads.get(group)
            if load is None:
                load = loads[group] = _load_of(group, queued_s, running)
            total, in_step, beside_s = load.total, load.busiest, load.beside_s(slot)
            lockstep_s = wait_s(ahead, own, beside_s, full_s) if beside_s else 0.0
            stalled = total * extension_s(ahead, own, beside_s) / own if own > 0 else total
            slowed = total if here >= in_step else 0.0
        columns.lockstep_s.append(lockstep_s)
        columns.stalled.append(stalled)
        columns.slowed.append(slowed)
        columns.in_step.append(in_step)
    return columns
