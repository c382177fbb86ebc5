"""What findings change: prices of constrained requests that outlive their finding and fade, published on change."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diagnosis.distribution import distribution_of
from diagnosis.facts import FleetFacts, GatewayView, PodObservation
from diagnosis.finding import Diagnosis, FirstAnswer, Question
from gateway.diagnosis.draining import FindingDrains
from gateway.diagnosis.effects import (
    CONSTRAINED_RECIPE,
    LEASE_S,
    MAX_PRICE_S,
    NO_EFFECTS,
    PRICE_HALF_LIFE_S,
    RENEW_S,
    EffectsLease,
    EffectsPublisher,
    FindingEffects,
)
from tests.gateway.diagnosis.test_finding_drains import a_finding, a_pod

QUIET = Diagnosis(1.0, FirstAnswer(Question.UNKNOWN, ""))
FOUND = replace(QUIET, findings=(a_finding(1, recipe=CONSTRAINED_RECIPE),))


def with_gap(number: int, gap_s: float) -> PodObservation:
    held = distribution_of([gap_s] * 10)
    return replace(a_pod(number), requests=GatewayView(0.0, 30.0, constrained_token_gap=held))


class Scene:
    """A publisher, and what it published."""

    def __init__(self, drains: FindingDrains | None = None) -> None:
        self.published: list[FindingEffects] = []
        self.now_s = 0.0
        self.publisher = EffectsPublisher(drains, self.published.append, lambda: self.now_s)

    def look(self, at_s: float, diagnosis: Diagnosis, *pods: PodObservation) -> None:
        self.publisher.apply(FleetFacts(at_s, pods), diagnosis)


def test_constrained_requests_cost_what_they_take_longer_there() -> None:
    """Than on the best other pod; nothing is published while nothing changes."""
    scene, pods = Scene(), (with_gap(1, 0.05), with_gap(2, 0.02), with_gap(3, 0.03))
    scene.look(0.0, QUIET, *pods)
    assert scene.published == []
    scene.look(5.0, FOUND, *pods)
    scene.look(10.0, FOUND, *pods)
    (effects,) = scene.published
    assert effects.constrained_excess_s == {"http://p1:1": pytest.approx(0.03)}


def test_a_price_fades_after_its_finding() -> None:
    """Requests that went elsewhere take the evidence with them; a pod that is gone has none."""
    scene, pods = Scene(), (with_gap(1, 0.05), with_gap(2, 0.02))
    scene.look(0.0, FOUND, *pods)
    scene.look(PRICE_HALF_LIFE_S, QUIET, *pods)
    assert scene.published[-1].constrained_excess_s == {"http://p1:1": pytest.approx(0.015)}
    scene.look(20 * PRICE_HALF_LIFE_S, QUIET, *pods)
    assert scene.published[-1] == FindingEffects()
    scene.look(20 * PRICE_HALF_LIFE_S, FOUND, *pods)
    scene.look(20 * PRICE_HALF_LIFE_S + 5, QUIET, pods[1])
    assert scene.published[-1] == FindingEffects()


def test_without_another_pod_to_compare_with_a_share_is_taken() -> None:
    """So that new plain pods are preferred."""
    scene = Scene()
    scene.look(0.0, FOUND, with_gap(1, 0.05))
    assert scene.published[-1].constrained_excess_s == {"http://p1:1": pytest.approx(0.015)}


def test_drains_are_published_with_prices() -> None:
    """In mode `act`."""
    scene = Scene(FindingDrains(frozenset(("rdma_port_down",)), lambda *_, **__: None, clock=lambda: 0.0))
    pods = [a_pod(number) for number in range(5)]
    scene.look(0.0, replace(QUIET, findings=(a_finding(2),)), *pods)
    assert scene.published == [FindingEffects(frozenset(("http://p2:1",)))]


def test_a_client_that_reads_slowly_does_not_close_a_pod() -> None:
    """The price is bounded."""
    scene = Scene()
    scene.look(5.0, FOUND, with_gap(1, 60.0), with_gap(2, 0.02))
    assert scene.published[-1].constrained_excess_s == {"http://p1:1": MAX_PRICE_S}


def test_effects_that_last_are_published_again() -> None:
    """Every `RENEW_S`; none are not."""
    scene, pods = Scene(), (with_gap(1, 0.05), with_gap(2, 0.02))
    scene.look(0.0, FOUND, *pods)
    scene.now_s = RENEW_S - 1
    scene.look(0.0, FOUND, *pods)
    assert len(scene.published) == 1
    scene.now_s = RENEW_S
    scene.look(0.0, FOUND, *pods)
    assert scene.published[0] == scene.published[1]
    scene.look(1.0, QUIET)
    scene.now_s = 9 * RENEW_S
    scene.look(2.0, QUIET)
    assert scene.published[2:] == [NO_EFFECTS]


class Timer:
    """A timer that a test lets end."""

    def __init__(self, delay_s: float, end: Callable[[], object]) -> None:
        self.delay_s, self.end, self.is_cancelled = delay_s, end, False

    def cancel(self) -> None:
        self.is_cancelled = True


def test_effects_end_where_they_are_not_published_again() -> None:
    """With the diagnosis that they come from; the worker logs it once."""
    in_force: list[FindingEffects] = []
    timers: list[Timer] = []
    events: list[str] = []

    def call_later(delay_s: float, end: Callable[[], object]) -> Any:
        timers.append(Timer(delay_s, end))
        return timers[-1]

    lease = EffectsLease(in_force.append, call_later, lambda _, event, **__: events.append(event))
    drained = FindingEffects(frozenset({"http://p1:1"}))
    lease.apply(drained)
    lease.apply(drained)
    assert [(timer.delay_s, timer.is_cancelled) for timer in timers] == [(LEASE_S, True), (LEASE_S, False)]
    timers[-1].end()
    assert in_force == [drained, drained, NO_EFFECTS]
    assert events == ["finding_effects_expired"]
    lease.apply(NO_EFFECTS)
    assert len(timers) == 2


def test_effects_end_also_where_they_could_not_all_be_activated() -> None:
    """A pod that was drained before the error is not drained for ever."""
    timers: list[Timer] = []

    def call_later(delay_s: float, end: Callable[[], object]) -> Any:
        timers.append(Timer(delay_s, end))
        return timers[-1]

    def put_in_force(_: FindingEffects) -> None:
        raise RuntimeError

    lease = EffectsLease(put_in_force, call_later, lambda *_, **__: None)
    with pytest.raises(RuntimeError):
        lease.apply(FindingEffects(frozenset({"http://p1:1"})))
    assert len(timers) == 1


def with_gaps(number: int, plain_s: float, constrained_s: float) -> PodObservation:
    """A pod with ten plain and ten constrained requests."""
    both = distribution_of([plain_s] * 10 + [constrained_s] * 10)
    view = GatewayView(0.0, 30.0, token_gap=both, constrained_token_gap=distribution_of([constrained_s] * 10))
    return replace(a_pod(number), requests=view)


def test_plain_requests_leave_other_pods_to_constrained_ones() -> None:
    """By what they take longer there than on the speculating pods, measured anew at each look while the price lasts."""
    scene = Scene()
    speculating, plain = with_gaps(1, 0.015, 0.04), with_gaps(2, 0.025, 0.025)
    scene.look(0.0, QUIET, speculating, plain)
    assert scene.published == []
    scene.look(5.0, FOUND, speculating, plain)
    assert scene.published[-1].constrained_excess_s == {"http://p1:1": pytest.approx(0.015)}
    assert scene.published[-1].plain_excess_s == {"http://p2:1": pytest.approx(0.01)}
    for look in range(40):
        scene.look(10.0 + 5 * look, QUIET, with_gaps(1, 0.03, 0.04), plain)
    assert scene.published[-1].constrained_excess_s
    assert scene.published[-1].plain_excess_s == {}
    scene.look(30 * PRICE_HALF_LIFE_S, QUIET, speculating, plain)
    assert scene.published[-1] == NO_EFFECTS
