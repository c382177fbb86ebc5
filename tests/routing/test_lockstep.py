"""Engines that step together: what a placement costs all of them, and what the router makes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from routing.decision.router import Router
from routing.facts import PodFacts
from routing.lockstep import extension_s, step_columns, wait_s
from routing.pods import EngineShape, Pod, PodState
from routing.request import Request
from scorers.registry import routings
from tests.routing.engines import MODEL, ask, texts_apart


@pytest.mark.parametrize(
    ("ahead_s", "own_s", "beside_s", "extends_s"),
    [(0.0, 2.0, 0.0, 2.0), (0.0, 2.0, 5.0, 0.0), (1.0, 2.0, 2.5, 0.5), (4.0, 2.0, 3.0, 2.0), (0.0, 0.0, 0.0, 0.0)],
)
def test_prefill_beside_longer_prefill_stalls_no_stream(
    ahead_s: float, own_s: float, beside_s: float, extends_s: float
) -> None:
    """It counts as far as it lasts longer than what the other ranks have queued."""
    assert extension_s(ahead_s, own_s, beside_s) == pytest.approx(extends_s)


@pytest.mark.parametrize(
    ("ahead_s", "own_s", "beside_s", "waits_s"),
    [(0.0, 0.1, 0.2, 0.2), (0.0, 0.1, 9.0, 1.4), (0.5, 0.1, 9.0, 0.4), (0.0, 2.0, 9.0, 0.5), (0.0, 0.0, 9.0, 1.5)],
)
def test_a_first_token_waits_for_the_steps_of_others(
    ahead_s: float, own_s: float, beside_s: float, waits_s: float
) -> None:
    """Steps of a second each: half of one to join, the rest of the last, and no longer than the others compute."""
    assert wait_s(ahead_s, own_s, beside_s, 1.0) == pytest.approx(waits_s)


def test_columns_show_the_group_and_leave_others_as_they_are() -> None:
    """Slots 0, 1 and 2 step together, 3 alone: the busiest rank sets the pace, and the longest queue counts for all."""
    columns = step_columns(
        dict.fromkeys((0, 1, 2), (0, 1, 2)),
        (0, 1, 3),
        ahead_s=[0.0, 2.0, 0.5],
        own_s=[1.0, 1.0, 1.0],
        full_step_s=[1.0, 1.0, 1.0],
        queued_s={0: 0.0, 1: 2.0, 2: 0.0},
        running=[3.0, 1.0, 4.0, 7.0],
    )
    assert columns.stalled == [0.0, 8.0, 7.0]
    assert columns.slowed == [0.0, 0.0, 7.0]
    assert columns.in_step == [4.0, 4.0, 7.0]
    assert columns.lockstep_s == [0.5, 0.0, 0.0]


def router_of_groups(*, ep: bool) -> Router:
    """Two groups of two: pods a and b, and pods c and d."""
    router = Router(routings()["warm"])
    for url in "abcd":
        facts = PodFacts(ep=ep or None, dp_group="one" if url in "ab" else "two")
        router.put_pod(Pod(url, PodState.READY, models=frozenset({MODEL}), facts=facts, ready_since_s=-1e6))
        router.reshape_pod(url, [EngineShape(kv_tokens=1_000_000)])
    return router


def ask_pod(url: str, text: bytes) -> Request:
    """A request that only one pod may serve."""
    return replace(ask(text), pods=frozenset({url}))


def test_a_long_prompt_goes_to_the_group_without_streams() -> None:
    """Streams run on pod a: on the idle pod b, a long prompt would stall them as on pod a itself."""
    for ep, expected in ((False, "b"), (True, "c")):
        router = router_of_groups(ep=ep)
        for number in range(8):
            stream = router.place(ask_pod("a", texts_apart(number)), avoid=frozenset(), now_s=0.0, draw=0.0)
            stream.first_token(0.1)
        long = router.place(ask(b"x" * 400_000), avoid=frozenset(), now_s=1.0, draw=0.0)
        assert long.engine.pod == expected


def test_groups_follow_pods() -> None:
    """A pod that leaves is in no group, and one rank alone is none; ranks of one pod need no name."""
    router = router_of_groups(ep=True)
    assert router.ledger.step_groups == {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    router.remove_pod("b")
    assert router.ledger.step_groups == {2: (2, 3), 3: (2, 3)}
    router.put_pod(Pod("e", PodState.READY, models=frozenset({MODEL}), facts=PodFacts(ep=True)))
    router.reshape_pod("e", [EngineShape(0), EngineShape(1), EngineShape(2)])
    slots = tuple(engine.slot for engine in router.fleet.pod("e").engines)  # type: ignore[union-attr]
    assert router.ledger.step_groups == {2: (2, 3), 3: (2, 3), **dict.fromkeys(slots, slots)}


def test_the_prediction_counts_the_step_of_another_rank() -> None:
    """A short prompt beside a long one waits for its steps, and its stream runs at its group's pace."""
    router = router_of_groups(ep=True)
    router.place(ask_pod("a", b"x" * 400_000), avoid=frozenset(), now_s=0.0, draw=0.0)
    beside = router.estimate(ask_pod("b", b"short"), avoid=frozenset(), now_s=0.0)
    alone = router.estimate(ask_pod("c", b"short"), avoid=frozenset(), now_s=0.0)
    assert beside.ttft_s > alone.ttft_s + 0.5
    assert beside.tpot_s == pytest.approx(alone.tpot_s + router.costs.step_per_sequence_s[1])
