"""What a pool costs is engine time times price, idle included, and its tokens divide it among tenants."""

import pytest
from prometheus_client import CollectorRegistry

from gateway.observe.metrics.pools import PoolCollector, PoolMeter, PoolNames, PoolTokens
from gateway.observe.metrics.request_groups import single_group
from gateway.runtime.metric_families import TenantLabels
from routing.decision.router import Router
from routing.facts import Role
from routing.fleet import Fleet
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tests.gateway.samples import an_attempt, an_outcome

PRICES = {"h100": 3.6}


class Scene:
    """A router, a clock, and the meter of its pools."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.router = Router(routings()["warm"])
        self.meter = PoolMeter(self.router.fleet, lambda: PRICES, lambda: self.now_s)
        self.waiting: dict[str, float] = {}
        self.registry = CollectorRegistry()
        self.registry.register(PoolCollector(self.router, self.meter, dict, lambda: self.waiting))

    def add(self, url: str, pool: str | None, role: Role = Role.EITHER, state: PodState = PodState.READY) -> None:
        self.router.put_pod(Pod(url, state=state, models=frozenset({"tiny"}), pool=pool))
        self.router.reshape_pod(url, (EngineShape(role=role, kv_tokens=1600),))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_idle_engines_cost_as_much_as_busy_ones() -> None:
    """From the look that first saw an engine ready to the one that misses it; a pool without a price costs nothing."""
    scene = Scene()
    scene.add("http://a:1", "h100")
    scene.add("http://b:1", "l40s")
    scene.add("http://c:1", "h100", state=PodState.STARTING)
    scene.meter.look()
    scene.now_s = 1000.0
    assert scene.value("hearth_pool_cost_total", pool="h100") == pytest.approx(1.0)
    assert scene.value("hearth_pool_cost_total", pool="l40s") is None
    assert scene.value("hearth_pool_engine_seconds_total", pool="l40s", role="either") == 1000.0
    assert scene.value("hearth_pool_engines", pool="h100", role="either") == 1
    scene.router.remove_pod("http://a:1")
    scene.meter.look()
    scene.now_s = 3000.0
    assert scene.value("hearth_pool_cost_total", pool="h100") == pytest.approx(1.0)


def test_tokens_divide_the_cost_of_a_pool_among_tenants() -> None:
    """By the rule of docs/metrics.md: uncached input and output. The parts add up to the whole cost."""
    fleet = Fleet()
    fleet.put(Pod("http://a:1", PodState.READY, frozenset({"tiny"}), pool="h100"))
    tokens = PoolTokens(PoolNames(fleet), TenantLabels())
    for tenant, usage in (("legal", Usage(100, 50, 60)), ("sales", Usage(10, 100, None)), ("legal", Usage(0, 10))):
        tokens.add(single_group(an_outcome(tenant=tenant, usage=usage), "h100"))
    assert tokens.by_key == {("h100", "legal"): [40, 60, 60], ("h100", "sales"): [10, 0, 100]}
    weights = {tenant: held[0] + held[2] for (_, tenant), held in tokens.by_key.items()}
    parts = {tenant: 7.0 * weight / sum(weights.values()) for tenant, weight in weights.items()}
    assert sum(parts.values()) == pytest.approx(7.0)
    assert parts["sales"] == pytest.approx(7.0 * 110 / 210)


def test_the_input_of_a_pair_belongs_to_its_prefill_pool() -> None:
    """Its output to the pool that answered."""
    fleet = Fleet()
    for url, pool in (("http://p:1", "prefill"), ("http://a:1", "decode")):
        fleet.put(Pod(url, PodState.READY, frozenset({"tiny"}), pool=pool))
    tokens, pair = PoolTokens(PoolNames(fleet), TenantLabels()), an_attempt(prefill_engine="http://p:1#0")
    tokens.add(single_group(an_outcome(attempts=(pair,)), "decode"))
    assert tokens.by_key == {("decode", "legal"): [0, 0, 11], ("prefill", "legal"): [4, 96, 0]}


def test_a_pool_is_that_of_the_pod_that_was_tried_last() -> None:
    """Else that of all the model's pods; without a name, or with several, the model."""
    fleet = Fleet()
    names = PoolNames(fleet)
    fleet.put(Pod("http://a:1", PodState.READY, frozenset({"tiny"}), pool="h100"))
    assert names.of((an_attempt(),), "tiny") == names.of((), "tiny") == "h100"
    fleet.put(Pod("http://b:1", PodState.READY, frozenset({"tiny", "lora"}), adapters=frozenset({"lora"})))
    assert names.of((), "tiny") == "tiny"
    assert names.of((an_attempt(engine="http://b:1#1"),), "lora") == "tiny"
    assert names.of((an_attempt(engine="http://gone:1"),), "tiny") == "tiny"
    assert names.of((), "unknown") == "unknown"


def test_queues_are_shown_by_role() -> None:
    """Prefill in tokens and seconds, decode in sequences, and what waits in engines."""
    scene = Scene()
    scene.add("http://p:1", "h100", Role.PREFILL)
    scene.add("http://d:1", "h100", Role.DECODE)
    scene.add("http://e:1", "mixed")
    request = Request("r", Api.CHAT, "tiny")
    placement = scene.router.place(request, avoid=frozenset({"http://p:1", "http://d:1"}), now_s=0, draw=0)
    scene.waiting = {"http://d:1": 3.0}
    assert placement.engine.name == "http://e:1"
    assert scene.value("hearth_pool_running_requests", pool="mixed", role="either") == 1
    assert scene.value("hearth_pool_running_requests", pool="h100", role="decode") == 0
    assert scene.value("hearth_pool_waiting_requests", pool="h100", role="decode") == 3
    assert (queued_s := scene.value("hearth_pool_prefill_queue_seconds", pool="mixed", role="either")) is not None
    pending = scene.value("hearth_pool_pending_prefill_tokens", pool="mixed", role="either")
    assert pending is not None
    assert queued_s == pytest.approx(pending * scene.router.costs.seconds_per_token[placement.engine.slot])
