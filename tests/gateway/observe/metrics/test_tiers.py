"""Signals for autoscalers: by tier and pool, of what exists, in counts that sum over processes."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from gateway.observe.metrics.request_groups import single_group
from gateway.observe.metrics.tiers import QueuedRequests, TierCollector, TierCounters, WaitingForPodCollector
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.rejections import status_of
from routing.decision.router import Router
from routing.fleet import Fleet
from routing.pods import Pod, PodState
from routing.rejection import Reason
from routing.request import Usage
from tests.gateway.samples import a_request, an_outcome


class Scene:
    """A fleet, what its tiers asked for, and who waits."""

    def __init__(self, **pools: str | None) -> None:
        self.fleet = Fleet()
        for model, pool in pools.items():
            self.fleet.put(Pod(f"http://{model}", PodState.READY, frozenset({model}), pool=pool))
        self.tallies = TierCounters(self.fleet)
        self.waiting: list[QueuedRequests] = []
        self.registry = CollectorRegistry()
        self.registry.register(TierCollector(self.tallies, self.fleet, lambda: self.waiting))

    def end(self, model: str = "tiny", tier: str = "gold", **changes: Any) -> None:
        self.tallies.add(single_group(an_outcome(request=a_request(model=model), tier=tier, **changes)))

    def shown(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def series(self) -> int:
        return sum(len(family.samples) for family in self.registry.collect())


def rejected(reason: Reason) -> dict[str, Any]:
    return {"status": status_of(reason), "reason": reason, "usage": None, "attempts": ()}


def test_goodput_is_counted_by_tier_and_pool() -> None:
    """Promises kept of those made: an overload that we refuse is a miss, what the client spoils is neither."""
    scene = Scene(tiny="small-pods")
    scene.end(slo_met=True, queue_wait_s=0.3, usage=Usage(100, 11, 0))
    scene.end(slo_met=False)
    scene.end(slo_met=False, **rejected(Reason.OVERLOADED))
    scene.end(slo_met=None, **rejected(Reason.RATE_LIMITED_TOKENS))
    labels = {"tier": "gold", "pool": "small-pods"}
    assert scene.shown("hearth_slo_requests_total", **labels) == 3
    assert scene.shown("hearth_slo_met_requests_total", **labels) == 1
    assert scene.shown("hearth_goodput_tokens_total", **labels) == 11
    assert scene.shown("hearth_tier_rejections_total", **labels, reason="overloaded") == 1
    assert scene.shown("hearth_tier_rejections_total", **labels, reason="rate_limited_tokens") == 1


def test_queues_are_shown_as_they_are_now() -> None:
    """By tier and pool; an empty queue of somebody known is zero, not absent."""
    scene = Scene(tiny="pods", other=None)
    scene.end(slo_met=True)
    scene.waiting = [QueuedRequests("gold", "other", 2, 1.5), QueuedRequests("bronze", "tiny", 3, 4.0)]
    assert scene.shown("hearth_queued_requests", tier="gold", pool="pods") == 0
    assert scene.shown("hearth_queued_requests", tier="gold", pool="other") == 2
    assert scene.shown("hearth_queue_drain_seconds", tier="bronze", pool="pods") == 4.0


def test_who_waits_for_a_pod_is_shown_by_model() -> None:
    """Every model of `model_list` from the start, other known ones while they wait, invented names never."""
    room, fleet, registry = AdmissionQueue(Router(()), clock=float, draw=float), Fleet(), CollectorRegistry()
    fleet.put(Pod("http://a", PodState.STARTING, frozenset({"known", "idle"})))
    fleet.configured_models = frozenset({"asleep", "other"})
    registry.register(WaitingForPodCollector(room, fleet))
    room.waiting_for_pod.update({"asleep": 2, "known": 1, "invented": 7})
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.name for sample in samples} == {"hearth_waiting_for_pod_requests"}
    shown = {sample.labels["model_name"]: sample.value for sample in samples}
    assert shown == {"asleep": 2.0, "known": 1.0, "other": 0.0}


def test_a_pool_of_several_models_is_one() -> None:
    """What its models asked for is summed; a model whose pods name several pools stands for itself."""
    scene = Scene(tiny="pods", other="pods")
    scene.end("tiny", slo_met=True)
    scene.end("other", slo_met=True)
    assert scene.shown("hearth_slo_met_requests_total", tier="gold", pool="pods") == 2
    scene.fleet.put(Pod("http://x", PodState.READY, frozenset({"tiny"}), pool="elsewhere"))
    assert scene.shown("hearth_slo_met_requests_total", tier="gold", pool="tiny") == 1


def test_who_is_gone_has_no_series() -> None:
    """Neither queue nor counts are left of a pool whose last pod has gone."""
    scene = Scene(tiny="pods")
    nothing = scene.series()
    scene.end(slo_met=True)
    assert scene.series() > nothing
    scene.fleet.remove("http://tiny")
    assert scene.series() == nothing


def test_names_cannot_be_invented() -> None:
    """Of a model that nobody serves nothing is counted, nor of those to whom nothing is promised."""
    scene = Scene(tiny="pods")
    nothing = scene.series()
    scene.end("invented", slo_met=False, **rejected(Reason.UNKNOWN_MODEL))
    scene.end("tiny", tier="default")
    assert scene.series() == nothing
