"""Pods are drained for findings where the configuration says so: few at a time, and while the evidence lasts."""

from typing import Any

from diagnosis.facts import EngineFlags, EngineWindow, FleetFacts, GaugeReadings, PodObservation
from diagnosis.finding import Diagnosis, Finding, FirstAnswer, Question, Severity
from gateway.diagnosis.draining import FindingDrains, needed_pods

FIRST = FirstAnswer(Question.UNKNOWN, "")


def gauge(value: float) -> GaugeReadings:
    return GaugeReadings(value, value, value, value)


def a_pod(
    number: int, *, waiting: float = 0.0, running: float = 1.0, kv: float = 0.1, ready: bool = True
) -> PodObservation:
    window = EngineWindow(0, 0.0, 30.0, running=gauge(running), waiting=gauge(waiting), kv_usage=gauge(kv))
    flags = EngineFlags(0.0, max_num_seqs=10)
    return PodObservation(f"http://p{number}:1", "pool", is_ready=ready, engines=(window,), flags=flags)


def a_finding(*pods: int, recipe: str = "engine_stalled") -> Finding:
    urls = tuple(f"http://p{number}:1" for number in pods)
    texts: Any = dict.fromkeys(("cause", "first_step", "helped", "wrong_if"), "")
    return Finding(recipe, "", Question.DECODE, Severity.FAILING, "pool", urls, 0.9, (), since_s=0.0, **texts)


class Scene:
    """Drains of a pool, and what was held and logged."""

    def __init__(self, *recipes: str) -> None:
        self.held: frozenset[str] = frozenset()
        self.events: list[tuple[str, Any]] = []
        self.drains = FindingDrains(frozenset(recipes), self.log)

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
    scene, pods = Scene("engine_stalled"), [a_pod(number) for number in range(5)]
    assert scene.look(pods, a_finding(2)) == {"http://p2:1"}
    assert scene.look(pods, a_finding(2)) == {"http://p2:1"}
    assert list(scene.drains.drained()) == [("pool", "http://p2:1")]
    assert scene.look(pods) == frozenset()
    assert scene.events == [("finding_pod_drained", "http://p2:1"), ("finding_pod_undrained", "http://p2:1")]


def test_findings_that_the_configuration_does_not_name_drain_nothing() -> None:
    """Nor does a fault of a third of the pool."""
    pods = [a_pod(number) for number in range(5)]
    assert Scene("engine_stalled").look(pods, a_finding(2, recipe="kv_pressure")) == frozenset()
    assert Scene("engine_stalled").look(pods, a_finding(0, 1)) == frozenset()


def test_one_pod_or_a_tenth_of_a_pool_is_drained() -> None:
    """Though more have the finding."""
    assert len(Scene("engine_stalled").look([a_pod(number) for number in range(10)], a_finding(1, 2))) == 1
    assert len(Scene("engine_stalled").look([a_pod(number) for number in range(20)], a_finding(1, 2, 3))) == 2


def test_no_pod_is_drained_that_the_load_needs() -> None:
    """Requests that wait, KV caches and sequences in use count."""
    assert needed_pods(FleetFacts(1.0, (a_pod(1, waiting=2.0), a_pod(2))), {}) == {"pool": 2}
    assert needed_pods(FleetFacts(1.0, (a_pod(1, kv=0.9), a_pod(2, kv=0.8))), {}) == {"pool": 3}
    assert needed_pods(FleetFacts(1.0, (a_pod(1, running=9), a_pod(2, running=8))), {}) == {"pool": 3}
    assert needed_pods(FleetFacts(1.0, (a_pod(1), a_pod(2, ready=False))), {}) == {"pool": 1}
    busy = [a_pod(number, waiting=1.0) for number in range(5)]
    assert Scene("engine_stalled").look(busy, a_finding(2)) == frozenset()


def test_a_pod_that_is_gone_is_forgotten() -> None:
    """It was removed, not undrained."""
    scene = Scene("engine_stalled")
    scene.look([a_pod(number) for number in range(5)], a_finding(2))
    assert scene.look([a_pod(1)]) == frozenset()
    assert scene.events == [("finding_pod_drained", "http://p2:1")]


def test_gateways_that_saw_the_evidence_in_another_order_drain_the_same_pod() -> None:
    """Candidates are taken by address."""
    pods = [a_pod(number) for number in range(9)]
    assert Scene("engine_stalled").look(pods, a_finding(5, 3)) == Scene("engine_stalled").look(pods, a_finding(3, 5))
