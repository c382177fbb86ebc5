"""Prompts whose prefill alone takes longer than their TTFT: served when the fleet can, or rejected as hopeless."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.candidates import NoEngineAdmissible
from routing.rejection import Reason, RequestRejected
from tenancy.objective import Tier, UnattainableAction
from tests.tenancy.test_admission import GOLD, Stage

FLAT = Tier("flat", 10, ttft_s=1.0, tpot_s=0.05)
STRICT = Tier("strict", 10, ttft_s=1.0, tpot_s=0.05, on_unattainable=UnattainableAction.REJECT)
LONG = 60_000
"""Some six seconds of prefill on these engines."""


def test_an_idle_fleet_serves_what_it_cannot_serve_in_time() -> None:
    """A prompt that takes longer than the TTFT on any engine is placed at once where engines are idle."""
    stage = Stage()
    waiter = stage.arrive(FLAT, LONG)
    assert waiter.start_by_s == waiter.leave_by_s
    assert stage.place(waiter).engine is not None
    assert waiter.is_unattainable


def test_it_waits_as_others_do_where_engines_are_busy() -> None:
    """It is not held to its TTFT, but still to everything else: other streams, and what an engine takes at once."""
    stage = Stage(engines=1)
    first = stage.place(stage.arrive(FLAT, LONG))
    waiter = stage.arrive(FLAT, LONG)
    with pytest.raises(NoEngineAdmissible):
        stage.place(waiter)
    first.first_token(6.0)
    first.release(6.0)
    assert stage.place(waiter, now_s=6.0).engine is first.engine


def test_a_prompt_that_fits_is_still_held_to_its_objective() -> None:
    """Behind a long prefill the first token of a short prompt would be late: it waits, and is not placed late."""
    stage = Stage(engines=1)
    stage.place(stage.arrive(FLAT, LONG))
    waiter = stage.arrive(FLAT, 600)
    with pytest.raises(NoEngineAdmissible):
        stage.place(waiter)
    assert not waiter.is_unattainable


def test_a_tier_may_reject_it_as_hopeless() -> None:
    """The rejection names both times, is never to be repeated, and gives no time to come back."""
    stage = Stage()
    waiter = stage.arrive(STRICT, LONG)
    with pytest.raises(RequestRejected) as caught:
        stage.place(waiter)
    rejection = caught.value
    assert (rejection.reason, rejection.is_permanent, rejection.retry_after_s) == (Reason.OVERLOADED, True, None)
    assert rejection.objective_ttft_s == 1.0
    assert rejection.predicted_ttft_s is not None
    assert rejection.predicted_ttft_s > 3.0
    assert f"{rejection.predicted_ttft_s:.3g} s" in rejection.message
    assert "1 s" in rejection.message


def test_a_tier_that_rejects_serves_what_an_engine_holds_already() -> None:
    """Only a cold prompt is too long: where an engine has its prefix cached, the promise can be kept."""
    stage = Stage(engines=1)
    first = stage.place(stage.arrive(FLAT, LONG, text=7))
    first.first_token(6.0)
    first.release(6.5)
    again = stage.arrive(STRICT, LONG, text=7, now_s=7.0)
    assert stage.place(again, now_s=7.0).predicted.cached_tokens > 0.9 * LONG


def test_a_request_that_spent_its_time_on_the_way_is_served_by_an_idle_fleet() -> None:
    """What was left of the TTFT when it asked is what counts: a prompt that just fits is not refused for ever."""
    stage = Stage()
    tokens = next(size for size in range(1_000, LONG, 200) if _idle_s(stage, size) > 0.98)
    assert _idle_s(stage, tokens) < FLAT.ttft_s
    for number, tier in enumerate((FLAT, STRICT)):
        waiter = stage.arrive(tier, tokens, now_s=10.0 + number, came_s=9.9 + number)
        placement = stage.place(waiter, now_s=10.0 + number)
        assert waiter.is_unattainable
        placement.release(10.5 + number)


def test_one_that_is_late_by_its_pods_fault_is_not_taken_for_too_long() -> None:
    """A short prompt that asks again after seconds elsewhere could be served in time if it were new."""
    stage = Stage(engines=1)
    first = stage.place(stage.arrive(FLAT, LONG))
    waiter = stage.arrive(STRICT, 600, now_s=5.0, came_s=0.0)
    assert waiter.start_by_s < 5.0
    with pytest.raises(NoEngineAdmissible):
        stage.place(waiter, now_s=5.0)
    assert not waiter.is_unattainable
    first.release(5.0)


def test_one_that_is_found_unattainable_in_the_queue_keeps_its_place_there() -> None:
    """Postponed, it is in the queue exactly once, and overdue only when it has waited as long as it may."""
    stage = Stage(engines=1)
    stage.place(stage.arrive(FLAT, LONG))
    waiter = stage.arrive(FLAT, 600)
    stage.wait(waiter)
    waiter.headroom_s = 0.0  # As where the only engines that were fast enough have left since.
    queue = waiter.queue
    with pytest.raises(NoEngineAdmissible):
        stage.place(waiter)
    assert waiter.is_unattainable
    assert queue.waiting == 1
    assert queue.overdue(waiter.leave_by_s) == []
    assert queue.overdue(waiter.leave_by_s + 1) == [waiter]
    queue.take(waiter, 0.0)
    assert queue.waiting == 0
    assert list(waiter.tier_queue.heads()) == []


def test_every_overload_reports_what_was_predicted() -> None:
    """A rejection at the door carries the prediction and what the tier allows, and a time to come back above zero."""
    stage = Stage()
    rejection = stage.fill()
    assert rejection.predicted_ttft_s is not None
    assert rejection.objective_ttft_s is not None
    assert rejection.predicted_ttft_s > rejection.objective_ttft_s
    assert (rejection.retry_after_s or 0.0) > 0


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 400_000),
    ttft_s=st.floats(0.001, 30.0),
    per_cold=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    priority=st.sampled_from([-20, 0, 20]),
    engines=st.integers(1, 4),
    late_s=st.floats(0.0, 0.5),
)
def test_an_idle_fleet_rejects_no_request(
    tokens: int, ttft_s: float, per_cold: float, priority: int, engines: int, late_s: float
) -> None:
    """Whatever the prompt, the tier and the engines kept for higher tiers: one that asks alone is placed at once."""
    stage = Stage(engines=engines)
    tier = Tier("any", priority, ttft_s=ttft_s, ttft_uncached_factor=per_cold, tpot_s=0.05)
    stage.admission.tiers = {"gold": GOLD, "any": tier}
    stage.place(stage.arrive(GOLD, 400)).release(0.1)
    waiter = stage.arrive(tier, tokens, now_s=1.0, came_s=1.0 - late_s * min(0.1 * ttft_s, 0.5))
    assert stage.place(waiter, now_s=1.0).engine is not None


def _idle_s(stage: Stage, tokens: int) -> float:
    return stage.arrive(FLAT, tokens).idle_ttft_s
