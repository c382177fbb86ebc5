"""Pods are drained for findings where the configuration says so: few at a time, and while the evidence lasts."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from diagnosis.facts import EngineFlags, EngineWindow, FleetFacts, GaugeReadings, PodObservation
from diagnosis.finding import Diagnosis, Finding, FirstAnswer, Question, Severity
from gateway.app.diagnosis import residencies
from gateway.diagnosis.draining import KEPT_S, MIN_LOOKS, QUIET_S, FindingDrains, bound_pods, needed_pods
from routing.facts import Role
from tenancy.policy import InlineFiles
from tenancy.reading.policy import read_policy

LEASE_S = 5.0

FIRST = FirstAnswer(Question.UNKNOWN, "")


def gauge(value: float) -> GaugeReadings:
    return GaugeReadings(value, value, value, value)


def a_pod(
    number: int, *, waiting: float = 0.0, running: float = 1.0, kv: float = 0.1, ready: bool = True
) -> PodObservation:
    window = EngineWindow(0, 0.0, 30.0, running=gauge(running), waiting=gauge(waiting), kv_usage=gauge(kv))
    flags = EngineFlags(0.0, max_num_seqs=10)
    return PodObservation(f"http://p{number}:1", "pool", is_ready=ready, engines=(window,), flags=flags)


def a_finding(*pods: int, recipe: str = "rdma_port_down") -> Finding:
    urls = tuple(f"http://p{number}:1" for number in pods)
    texts: Any = dict.fromkeys(("cause", "first_step", "helped", "wrong_if"), "")
    return Finding(recipe, "", Question.DECODE, Severity.FAILING, "pool", urls, 0.9, (), since_s=0.0, **texts)


class Scene:
    """Drains of a pool, and what was held and logged."""

    def __init__(self, *recipes: str) -> None:
        self.held: frozenset[str] = frozenset()
        self.events: list[tuple[str, Any]] = []
        self.drains = FindingDrains(frozenset(recipes), self.log, clock=lambda: 0.0)

    def log(self, level: str, event: str, **fields: Any) -> None:
        self.events.append((event, fields["upstream"]))

    def look(self, pods: list[PodObservation], *findings: Finding) -> frozenset[str]:
        shown = [
            PodObservation(
                pod.address, pod.pool, is_ready=pod.address not in self.held, engines=pod.engines, flags=pod.flags
            )
            for pod in pods
        ]
        self.held = self.drains.update(FleetFacts(1.0, tuple(shown)), Diagnosis(1.0, FIRST, findings))
        return self.held


def test_a_pod_is_drained_while_its_finding_lasts() -> None:
    """Both are logged once."""
    scene, pods = Scene("rdma_port_down"), [a_pod(number) for number in range(5)]
    assert scene.look(pods, a_finding(2)) == {"http://p2:1"}
    assert scene.look(pods, a_finding(2)) == {"http://p2:1"}
    assert list(scene.drains.drained()) == [("pool", "http://p2:1")]
    assert scene.look(pods) == frozenset()
    assert scene.events == [("finding_pod_drained", "http://p2:1"), ("finding_pod_undrained", "http://p2:1")]


def test_findings_that_the_configuration_does_not_name_drain_nothing() -> None:
    """Nor does a fault of a third of the pool."""
    pods = [a_pod(number) for number in range(5)]
    assert Scene("rdma_port_down").look(pods, a_finding(2, recipe="kv_pressure")) == frozenset()
    assert Scene("rdma_port_down").look(pods, a_finding(0, 1)) == frozenset()


def test_one_pod_or_a_tenth_of_a_pool_is_drained() -> None:
    """Though more have the finding."""
    assert len(Scene("rdma_port_down").look([a_pod(number) for number in range(10)], a_finding(1, 2))) == 1
    assert len(Scene("rdma_port_down").look([a_pod(number) for number in range(20)], a_finding(1, 2, 3))) == 2


def test_no_pod_is_drained_that_the_load_needs() -> None:
    """Requests that wait, KV caches and sequences in use count."""
    assert needed_pods(FleetFacts(1.0, (a_pod(1, waiting=2.0), a_pod(2))), {}) == {"pool": 2}
    assert needed_pods(FleetFacts(1.0, (a_pod(1, kv=0.9), a_pod(2, kv=0.8))), {}) == {"pool": 3}
    assert needed_pods(FleetFacts(1.0, (a_pod(1, running=9), a_pod(2, running=8))), {}) == {"pool": 3}
    assert needed_pods(FleetFacts(1.0, (a_pod(1), a_pod(2, ready=False))), {}) == {"pool": 1}
    busy = [a_pod(number, waiting=1.0) for number in range(5)]
    assert Scene("rdma_port_down").look(busy, a_finding(2)) == frozenset()


def test_the_last_pods_of_a_region_are_kept_for_tenants_that_are_bound_to_it() -> None:
    """By the policy's residency: pods of other regions may be drained, and the region's where another one is left."""
    policy = "auth: {default_tenant: a}\ntenants: {a: {allowed_regions: [eu]}, b: {allowed_regions: [eu, us]}, c: {}}"
    bound_to = residencies(read_policy(policy, {}, InlineFiles()))
    assert bound_to == {frozenset({"eu"}), frozenset({"eu", "us"})}
    assert residencies(None) == frozenset()
    drains = FindingDrains(
        frozenset({"rdma_port_down"}), lambda *_, **__: None, clock=lambda: 0.0, residencies=lambda: bound_to
    )

    def drained(pod: int, *regions: str | None) -> frozenset[str]:
        pods = tuple(replace(a_pod(number), region=region) for number, region in enumerate(regions))
        drains.update(FleetFacts(1.0, pods), Diagnosis(1.0, FIRST, ()))
        return drains.update(FleetFacts(1.0, pods), Diagnosis(1.0, FIRST, (a_finding(pod, recipe="rdma_port_down"),)))

    assert drained(0, "eu", "us", "us", None) == frozenset()
    assert drained(1, "eu", "us", "us", None) == {"http://p1:1"}
    assert drained(3, "eu", "us", "us", None) == {"http://p3:1"}
    assert drained(0, "eu", "eu", "us", None) == {"http://p0:1"}


def test_the_only_pod_of_a_role_or_model_is_kept() -> None:
    """Its requests could not be sent to the pool's other pods; a part's own load counts."""
    pods = [a_pod(1), a_pod(2), replace(a_pod(3), role=Role.DECODE), replace(a_pod(4), model="other")]
    found = {each.pods: each.needed for each in bound_pods(FleetFacts(1.0, tuple(pods)), {}, ())}
    assert found == {
        frozenset({"http://p1:1", "http://p2:1"}): 1,
        frozenset({"http://p3:1"}): 1,
        frozenset({"http://p4:1"}): 1,
    }
    busy = (*(replace(a_pod(number, waiting=2.0), region="eu") for number in (1, 2)), a_pod(3))
    (everywhere, part) = bound_pods(FleetFacts(1.0, busy), {}, [frozenset({"eu"}), frozenset({"us"})])
    assert (len(everywhere.pods), everywhere.needed, len(part.pods), part.needed) == (3, 3, 2, 2)
    unready = (a_pod(1), a_pod(2, ready=False))
    assert [each.pods for each in bound_pods(FleetFacts(1.0, unready), {}, ())] == [frozenset({"http://p1:1"})]


def test_a_pod_that_is_gone_is_forgotten() -> None:
    """It was removed, not undrained."""
    scene = Scene("rdma_port_down")
    scene.look([a_pod(number) for number in range(5)], a_finding(2))
    assert scene.look([a_pod(1)]) == frozenset()
    assert scene.events == [("finding_pod_drained", "http://p2:1")]


def test_gateways_that_saw_the_evidence_in_another_order_drain_the_same_pod() -> None:
    """Candidates are taken by address."""
    pods = [a_pod(number) for number in range(9)]
    assert Scene("rdma_port_down").look(pods, a_finding(5, 3)) == Scene("rdma_port_down").look(pods, a_finding(3, 5))


class Shared:
    """What stands in Redis: a decision, who made it, and until when its lease lasts."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.drained: dict[str, str] = {}
        self.owner = ""
        self.until_s = 0.0


class Lease:
    """The lease as one gateway sees it; `is_cut`: Redis does not answer it."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.name, self.shared, self.is_cut, self.ours_until_s = name, shared, False, 0.0

    @property
    def is_held(self) -> bool:
        return self.shared.now_s < self.ours_until_s

    async def exchange(self, roles: Mapping[str, str], /) -> Mapping[str, str] | None:
        shared = self.shared
        if self.is_cut:
            return None
        if shared.now_s >= shared.until_s or shared.owner == self.name:
            shared.owner, shared.until_s, shared.drained = self.name, shared.now_s + LEASE_S, dict(roles)
            self.ours_until_s = shared.until_s
        else:
            self.ours_until_s = 0.0
        return dict(shared.drained)

    async def read(self) -> Mapping[str, str] | None:
        if self.is_cut:
            return None
        return dict(self.shared.drained) if self.shared.now_s < self.shared.until_s else {}


class SharedGateway:
    """A gateway that diagnoses the same pods as the others."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.lease = Lease(name, shared)
        self.is_looking = True
        self.drains = FindingDrains(
            frozenset({"rdma_port_down"}), lambda *_, **__: None, clock=lambda: shared.now_s, lease=self.lease
        )

    def look(self, size: int, *findings: Finding) -> None:
        held = self.drains.held
        pods = tuple(a_pod(number, ready=f"http://p{number}:1" not in held) for number in range(size))
        if self.is_looking:
            self.drains.update(FleetFacts(1.0, pods), Diagnosis(1.0, FIRST, findings))


async def pass_time(shared: Shared, gateways: list[SharedGateway], seconds: float, *findings: Finding) -> None:
    """Let time pass: a lease is renewed each second, and the fleet is looked at each five."""
    for second in range(round(seconds)):
        shared.now_s += 1.0
        for gateway in gateways:
            if second % 5 == 0:
                gateway.look(5, *findings)
            await gateway.drains.exchange()


async def test_one_gateway_decides_for_all() -> None:
    """All drain the same pod, though they see its finding and another at different times; when it is gone all stop."""
    shared = Shared()
    gateways = [SharedGateway(name, shared) for name in "abc"]
    await pass_time(shared, gateways, 5 * MIN_LOOKS + QUIET_S + 10)
    await pass_time(shared, gateways[:1], 10, a_finding(1))
    await pass_time(shared, gateways, 10, a_finding(0), a_finding(1))
    assert [gateway.drains.held for gateway in gateways] == [{"http://p1:1"}] * 3
    await pass_time(shared, gateways, 10)
    assert [gateway.drains.held for gateway in gateways] == [set()] * 3


@pytest.mark.parametrize("ends", ["is_cut", "is_looking"])
async def test_drains_end_with_the_gateway_that_decides(ends: str) -> None:
    """Without Redis within `KEPT_S`; where its diagnosis has stopped another gateway decides, by its own evidence."""
    shared = Shared()
    one, two = (SharedGateway(name, shared) for name in "ab")
    await pass_time(shared, [one, two], 5 * MIN_LOOKS + QUIET_S + 10)
    await pass_time(shared, [one, two], 10, a_finding(1))
    assert shared.owner == "a"
    assert one.drains.held == two.drains.held == {"http://p1:1"}
    if ends == "is_cut":
        one.lease.is_cut = two.lease.is_cut = True
        await pass_time(shared, [one, two], KEPT_S - 2, a_finding(1))
        assert one.drains.held == two.drains.held == {"http://p1:1"}
        await pass_time(shared, [one, two], 3, a_finding(1))
    else:
        one.is_looking = False
        await pass_time(shared, [one, two], 60)
        assert shared.owner == "b"
    assert one.drains.held == two.drains.held == set()


@pytest.mark.parametrize("seed", range(20))
async def test_the_limit_holds_over_all_gateways_at_any_time(seed: int) -> None:
    """Whatever gateways find, start, stop to look, or lose Redis: never more than one pod of five at all together."""
    draw, shared = Random(seed), Shared()
    gateways = [SharedGateway(str(number), shared) for number in range(3)]
    drained = 0
    for step in range(1_500):
        shared.now_s += 1.0
        if draw.random() < 0.02:
            chosen = draw.randrange(3)
            gateways[chosen] = SharedGateway(f"new{step}", shared)
        if draw.random() < 0.03:
            lease = draw.choice(gateways).lease
            lease.is_cut = not lease.is_cut
        if draw.random() < 0.01:
            one = draw.choice(gateways)
            one.is_looking = not one.is_looking
        for gateway in draw.sample(gateways, 3):
            if draw.random() < 0.2:
                seen = draw.sample(range(5), draw.randint(0, 2))
                gateway.look(5, *(a_finding(pod) for pod in seen))
            await gateway.drains.exchange()
            held = frozenset[str]().union(*(each.drains.held for each in gateways))
            assert len(held) <= 1
            drained += bool(held)
    assert drained
