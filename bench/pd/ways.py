"""The ways of sharing prefill and decode among the same engines, and how one of them is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from bench.pd.central_queue import CentralPrefillQueue
from bench.pd.figures import Figures, figures_of
from bench.pd.workloads import ENGINES, PATIENCE_S, Workload
from routing.pairing.roles import RoleTerms
from simulator.replay import Setting, play
from simulator.split import Split

COLOCATED, ALWAYS, SOFT, CHOICE, KNOWING = "colocated", "always", "soft roles", "choice", "clairvoyant"
CENTRAL = "central queue"


@dataclass(frozen=True, slots=True)
class Way:
    """One way; `split` None: independent engines."""

    name: str
    split: Split | None
    is_central: bool = False
    """Requests wait before all prefill engines together."""


def fixed_ways() -> list[Way]:
    """Return no split, and every fixed one: that many engines prefill all prompts, the others decode."""
    splits = [Way(f"{count}P:{ENGINES - count}D", Split(count, is_forced=True)) for count in range(1, ENGINES)]
    return [Way(COLOCATED, None), *splits]


def soft_way() -> Way:
    """Ours: roles follow the traffic, and engines keep to them while they have them."""
    return Way(SOFT, Split(ENGINES // 2, is_soft=True, is_forced=True))


def always_way() -> Way:
    """Each engine may do either, and no request has both done by one."""
    return Way(ALWAYS, Split(is_forced=True))


def choice_way() -> Way:
    """Ours without roles: each engine may do either for each request."""
    return Way(CHOICE, Split())


def central_way(prefill: int) -> Way:
    """Return a fixed split whose requests wait before all prefill engines together."""
    name = f"{prefill}P:{ENGINES - prefill}D, {CENTRAL}"
    return Way(name, Split(prefill, is_forced=True), is_central=True)


def knowing_ways(best: Mapping[str, Sequence[int]], workload: Workload) -> list[Way]:
    """Those who knew every turn beforehand, and had one of the best fixed splits for each kind at the very turn."""
    ways = []
    for chosen in product(*best.values()):
        split = dict(zip(best, chosen, strict=True))
        shifts = tuple((at_s, split[kind]) for at_s, kind in workload.phases)
        name = f"{KNOWING} " + ", ".join(f"{count}P" for count in chosen)
        ways.append(Way(name, Split(shifts[0][1], shifts=shifts[1:], is_forced=True)))
    return ways


def play_way(way: Way, workload: Workload, seed: int) -> Figures:
    """Play a workload to its end in virtual time."""
    split = way.split
    if split is not None:
        terms = RoleTerms(ttft_s=workload.ttft_s, tpot_s=workload.tpot_s)
        split = replace(split, link=workload.link, terms=terms)
    room = CentralPrefillQueue if way.is_central else None
    setting = Setting("warm", ENGINES, workload.profile, seed, PATIENCE_S, split=split, make_room=room)
    return figures_of(workload, play(workload.trace, setting))
