"""The lab's policies by name. A new one is one scorer file and one line here; beside the gateway's own routings.

A policy that counts gets the lab's board; what an engine's cache holds all of them learn from the router's own prefix
index, corrected by actual responses, so that choices are compared and not bookkeeping. `cache-aware` keeps its own
tree, because that is what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from routing.candidates import Scorer
from scorers.registry import routings
from simulator.policies.affinity import Affinity
from simulator.policies.board import Board
from simulator.policies.cache_aware import CacheAware
from simulator.policies.dynamo import DynamoCost, LMetric
from simulator.policies.exactly import Exactly
from simulator.policies.least_prefill import LeastPrefill
from simulator.policies.polyserve import FullestFeasible
from simulator.policies.recorded import AsRecorded
from simulator.policies.seconds import GivenSeconds
from simulator.policies.sticky import Sticky, StickyBySlack
from simulator.policies.weighted import PrefixAndLoad, PrefixQueueKv
from simulator.profile import Profile

Maker = Callable[[Board, Profile], Scorer]

POLICIES: Mapping[str, Maker] = {
    "as-recorded": lambda board, _profile: AsRecorded(board),
    "least-prefill": lambda _board, _profile: LeastPrefill(),
    "session-affinity": lambda board, _profile: Affinity(board),
    "weighted-3-1": lambda board, _profile: PrefixAndLoad(board),
    "llm-d-3-2-2": lambda board, _profile: PrefixQueueKv(board),
    "llm-d-sticky": lambda board, _profile: Sticky(board),
    "sticky-by-slack": lambda board, _profile: StickyBySlack(board),
    "dynamo": lambda board, _profile: DynamoCost(board),
    "lmetric": lambda board, _profile: LMetric(board),
    "fullest-feasible": lambda _board, _profile: FullestFeasible(),
    "cache-aware": lambda board, _profile: CacheAware(board),
    "given-seconds": lambda board, profile: GivenSeconds(board, profile.prefill_tokens_per_s),
}

TAKES_FIRST = frozenset({"cache-aware"})
"""Who among equals takes the first worker in the list, as published, instead of drawing."""

OURS = "warm"

COMPARED = ("round-robin", *(name for name in POLICIES if name != "as-recorded"), OURS)
"""Side by side on any trace, ours last."""


def known_policies() -> tuple[str, ...]:
    """All names that can be played."""
    return (*routings(), *POLICIES)


def scorers_of(name: str, board: Board, profile: Profile, random: Random) -> Sequence[Scorer]:
    """Return the scorers of a policy, ours or another's. Raises KeyError for an unknown name."""
    if name in POLICIES:
        return (Exactly(POLICIES[name](board, profile), board, random, first_of_equals=name in TAKES_FIRST),)
    return routings()[name]
