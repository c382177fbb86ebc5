"""Who is chosen when a gate has a say: the best of all that are open, though few are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.candidates import Candidates, NoEngineAdmissible, ScoreTable
from routing.decision.router import (
    SINGLE_REPLICA,
    TIE_S,
    ReplicaPosition,
    choose,
    own_share,
    penalised,
    replica_position,
)
from routing.ledger import StreamObjective
from tests.routing.engines import ask, place, router_of
from tests.scorers.columns import candidates_of


class Door:
    """A gate that opens some positions, and remembers about which it was asked."""

    stream_objective: StreamObjective | None = None

    def __init__(self, opened: Sequence[bool]) -> None:
        self._opened = opened
        self.requested: list[int] = []

    def admits(self, candidates: Candidates, at: int) -> bool:
        self.requested.append(at)
        return self._opened[at]


def scored(totals: Sequence[float]) -> ScoreTable:
    return ScoreTable(("session",), (totals,), totals)


Engines = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.1 + TIE_S / 2, 0.1 + 2 * TIE_S, 3.0]), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=9,
)


@given(Engines, st.integers(-1, 8), st.floats(0.0, 0.99), st.sampled_from([SINGLE_REPLICA, (0, 3), (2, 3)]))
def test_the_choice_is_the_best_that_is_open(
    engines: list[tuple[float, bool, int]], session: int, draw: float, seat: ReplicaPosition
) -> None:
    """The best where it is open, else what is chosen where all that are shut count as infinitely far: whatever ties,
    session and seat.
    """
    totals, opened, turns = ([each[column] for each in engines] for column in range(3))
    session_at = session if 0 <= session < len(engines) else None
    candidates = candidates_of(len(engines), last_turn=turns, session_at=session_at)
    gate = Door([bool(each) for each in opened])
    if not any(opened):
        with pytest.raises(NoEngineAdmissible):
            choose(scored(totals), candidates, draw, seat, gate)
        return
    best = choose(scored(totals), candidates, draw, seat, None)
    allowed = [total if is_open else inf for total, is_open in zip(totals, opened, strict=True)]
    best_allowed = choose(scored(allowed), candidates, draw, seat, None)
    assert choose(scored(totals), candidates, draw, seat, gate) == (best if opened[best] else best_allowed)


def test_of_a_hundred_only_the_best_is_checked() -> None:
    """Admission costs no pass of its own where it has no objection."""
    gate = Door([True] * 100)
    totals = [1.0 + at for at in range(100)]
    assert choose(scored(totals), candidates_of(100), 0.5, SINGLE_REPLICA, gate) == 0
    assert gate.requested == [0]


def test_who_is_worse_than_the_first_open_one_is_not_checked() -> None:
    """In the order of their seconds, and no further."""
    gate = Door([False, False, True, True])
    assert choose(scored([0.2, 0.1, 0.4, 0.6]), candidates_of(4), 0.5, SINGLE_REPLICA, gate) == 2
    assert set(gate.requested) == {0, 1, 2}


@given(st.integers(1, 40), st.integers(1, 40))
def test_shares_cover_the_ring(engines: int, count: int) -> None:
    """With all places equal nobody is without a share, and together they leave no engine out where they are few."""
    places = range(engines)
    shares = [set(own_share(places, engines, (rank, count))) for rank in range(count)]
    assert all(shares)
    if count <= engines:
        assert set().union(*shares) == set(places)
    assert max(map(len, shares)) <= engines // count + 1


@given(st.sets(st.integers(0, 19), min_size=1), st.integers(0, 6))
def test_somebody_is_always_nearest(places: set[int], rank: int) -> None:
    """Where nothing of the own share is among the equals the next share is taken."""
    found = own_share(sorted(places), 20, (rank, 7))
    assert found
    assert set(found) <= places
    assert own_share(sorted(places), 20, SINGLE_REPLICA) == sorted(places)


@given(st.sets(st.integers(0, 2**63), min_size=1))
def test_each_finds_another_slot(names: set[int]) -> None:
    """Who knows the same names comes to the same table, each to a place of his own."""
    seats = {replica_position(name, names - {name}) for name in names}
    assert seats == {(rank, len(names)) for rank in range(len(names))}


def test_a_burst_over_several_routers_does_not_pile_up() -> None:
    """Eight cold prompts at one moment, over four routers that have not heard of each other yet: every pod gets one."""
    routers = [router_of(8) for _ in range(4)]
    for rank, router in enumerate(routers):
        router.replica_position = rank, 4
    chosen = [place(routers[number % 4], ask(b"%d " % number * 2000)).engine.name for number in range(8)]
    assert len(set(chosen)) == 8


def test_a_burst_that_finds_one_pod_idle_does_not_all_go_there() -> None:
    """Three pods are a little busy, one is not: of four routers one takes it, the others stay within their shares."""
    routers = [router_of(4) for _ in range(4)]
    for rank, router in enumerate(routers):
        router.replica_position = rank, 4
        for busy in range(3):
            slot = router.fleet.pods[busy].engines[0].slot
            router.ledger.charge(slot, prefill_tokens=300, prefill_s=0.03, kv_tokens=300, sequences=1, now_s=0.0)
    chosen = [place(router, ask(b"%d " % rank * 2000)).engine.name for rank, router in enumerate(routers)]
    assert len(set(chosen)) == 4


def test_a_slot_does_not_outweigh_a_difference() -> None:
    """A warm prefix beyond the own share is still where the prompt goes."""
    router = router_of(8)
    router.replica_position = 0, 4
    first = place(router, ask())
    first.first_token(1.0)
    first.release(1.0)
    router.replica_position = 3, 4
    assert place(router, ask(), now_s=9.0).engine.name == first.engine.name


def test_a_small_difference_does_not_lead_beyond_our_share() -> None:
    """Its own prefill once more is what another router's unseen request may cost there; more than that is a reason."""
    assert list(penalised([1.0, 1.5, 0.7, 0.0], [0.5] * 4, (0, 2))) == [1.0, 1.5, 1.2, 0.5]
    assert list(penalised([1.0, 1.5, 0.7, 0.0], [0.5] * 4, SINGLE_REPLICA)) == [1.0, 1.5, 0.7, 0.0]


def test_cached_tokens_beyond_our_share_still_draws() -> None:
    """Where it is warm its own prefill is next to nothing."""
    assert min(penalised([1.0, 1.0, 1.0, 0.02], [1.0, 1.0, 1.0, 0.02], (0, 2))) == 0.04
