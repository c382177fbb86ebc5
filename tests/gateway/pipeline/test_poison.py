"""What may be the request's own doing is tried at few pods; what is known to be a pod's is not held against a request.

Pods keep breakers here as the watcher does, and a request does to a pod what it is told to.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.breaker import CircuitBreaker
from gateway.pipeline.attempt import AttemptLimits, AttemptResult, AttemptStatus
from routing.decision.placement import Placement
from routing.request import Api, Request
from routing.retries import RetryTerms
from simulator.clock import run_virtually
from tests.gateway.pipeline.test_pipeline import MODEL, PROMPT, Play, PlayedCarrier, Stage

ATTEMPTS = RetryTerms().max_attempts
IN_ALL = ATTEMPTS**2


@dataclass
class Fleet:
    """How its pods are: `sick` ones break whatever they are asked, and so does whatever poison was asked of."""

    pods: tuple[str, ...]
    sick: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    broken_by: list[str] = field(default_factory=list)
    """The requests that broke a pod that was well."""

    def ask(self, pod: str, name: str, *, is_poison: bool) -> AttemptStatus:
        if pod in self.gone:
            return AttemptStatus.UNREACHABLE
        if is_poison and pod not in self.sick:
            self.sick.add(pod)
            self.broken_by.append(name)
        return AttemptStatus.UPSTREAM_5XX if pod in self.sick else AttemptStatus.OK


@dataclass
class Asked(PlayedCarrier):
    """A request to such pods."""

    fleet: Fleet = field(default_factory=lambda: Fleet(()))
    name: str = "r"
    is_poison: bool = False
    takes_s: float = 0.0

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        pod = placement.engine.pod
        self.pods.append(pod)
        end = self.fleet.ask(pod, self.name, is_poison=self.is_poison)
        await asyncio.sleep(self.takes_s)
        return Play(end).leg


class Guarded(Stage):
    """A stage that knows of its pods what a watcher does."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(AttemptLimits(retries=RetryTerms(budget_burst=10_000)), fleet.pods)
        self.fleet = fleet
        self.breakers = dict.fromkeys(fleet.pods, CircuitBreaker())

    def take_end(self, pod: str, end: AttemptStatus) -> bool | None:
        """As the watcher does."""
        before = self.breakers[pod]
        self.breakers[pod] = before.on_success() if end is AttemptStatus.OK else before.on_failure(0.0)
        return before.is_failing

    async def ask(self, name: str, *, is_poison: bool = False, takes_s: float = 0.0) -> Asked:
        carrier = Asked((), fleet=self.fleet, name=name, is_poison=is_poison, takes_s=takes_s)
        await self.pipeline.handle_request(Request(name, Api.CHAT, MODEL, PROMPT, stream=True), carrier)
        return carrier


def played(fleet: Fleet, *names: str, is_poison: bool = False, takes_s: float = 0.0) -> tuple[Guarded, list[Asked]]:
    """Requests that all come at once."""

    async def play() -> tuple[Guarded, list[Asked]]:
        stage = Guarded(fleet)
        return stage, await asyncio.gather(*(stage.ask(name, is_poison=is_poison, takes_s=takes_s) for name in names))

    stage, requested = run_virtually(play())
    assert stage.router.ledger.is_empty()
    return stage, requested


def pods(count: int) -> tuple[str, ...]:
    return tuple(f"http://pod{at}" for at in range(count))


@pytest.mark.parametrize("well", range(3))
def test_two_pods_that_no_one_knows_to_be_broken_fail_no_one(well: int) -> None:
    """The very first request that meets them is answered by the third."""
    every = pods(3)
    _, (requested,) = played(Fleet(every, sick={*every} - {every[well]}), "first")
    assert not requested.refusals
    assert requested.pods[-1] == every[well]


def test_pods_that_fail_others_are_not_held_against_a_request() -> None:
    """However many they are, within bounds, the one that is well is found; the receipt says which were known."""
    every = pods(IN_ALL)

    async def play() -> tuple[Guarded, Asked]:
        stage = Guarded(Fleet(every, sick=set(every[1:])))
        for pod in every[1:]:
            stage.take_end(pod, AttemptStatus.UPSTREAM_5XX)
        stage.pipeline.budget.balance = IN_ALL
        return stage, await stage.ask("late")

    stage, requested = run_virtually(play())
    assert not requested.refusals
    assert requested.pods[-1] == every[0]
    assert [attempt.was_unhealthy for attempt in stage.outcomes[0].attempts] == [True] * (len(requested.pods) - 1) + [
        False
    ]


def test_pods_where_there_is_no_listener_have_failed_nothing() -> None:
    """They have seen nothing of the request: the one that lives is found among any number."""
    every = pods(30)
    _, (requested,) = played(Fleet(every, gone=set(every[1:])), "r")
    assert not requested.refusals
    assert requested.pods[-1] == every[0]


def test_a_poisoned_request_breaks_few_pods() -> None:
    """It is refused when so many that were well have failed it."""
    fleet = Fleet(pods(30))
    _, (requested,) = played(fleet, "poison", is_poison=True)
    assert len(requested.refusals) == 1
    assert len(fleet.broken_by) == len(requested.pods) == ATTEMPTS


@given(count=st.integers(1, 12), takes_s=st.sampled_from([0.0, 1.0]), sick=st.integers(0, 12))
def test_many_poisoned_requests_get_no_further_than_each_alone(count: int, takes_s: float, sick: int) -> None:
    """Each one's failure is evidence for the others that the pod is broken, and yet a pod that breaks is held against
    one of them: together they break no more pods than if nobody knew of the others. None walks the fleet.
    """
    every = pods(60)
    fleet = Fleet(every, sick=set(every[:sick]))
    _, requested = played(fleet, *map(str, range(count)), is_poison=True, takes_s=takes_s)
    assert all(len(each.refusals) == 1 for each in requested)
    assert all(len(each.pods) <= IN_ALL for each in requested)
    assert len(fleet.broken_by) <= ATTEMPTS * count
