"""The series of a large gateway stay below a stated bound, whatever its clients send."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from gateway.app.build import build
from gateway.app.gateway import Gateway
from gateway.config.discovery import DiscoveredPod
from gateway.config.settings import read_settings
from gateway.discovery.source import StaticSource
from gateway.fleet.breaker import BreakerState
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.probe import ProbeResult
from gateway.fleet.scrape import COUNTERS, PROMPT_TOKENS_BY_SOURCE, EngineReading, MetricsPage
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from routing.pod_record import GpuReading, NodeReading, RdmaPort
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason
from tests.gateway.samples import a_request, an_attempt, an_outcome

PODS, TENANTS, MAX_SERIES = 300, 10_000, 60_000
"""As docs/metrics.md states them."""

MODELS, POOLS, TIERS = 12, 6, ("gold", "silver", "bronze", "batch")

PRICE = "input_cost_per_token: 1.0e-6, output_cost_per_token: 1.0e-6"

SETTINGS = f"model_list: [{', '.join(f'{{model_name: m{number}, {PRICE}}}' for number in range(MODELS))}]"


class Nodes(StaticSource):
    """A source whose pods run on one node each, with eight GPUs and as many RDMA ports."""

    def nodes(self) -> Mapping[str, NodeReading]:
        gpus = (GpuReading(0.5, 1, 2, 300.0),) * 8
        ports = tuple(RdmaPort(f"mlx5_{number}", 1, is_up=True) for number in range(8))
        return {f"node-{number}": NodeReading(gpus, ports) for number in range(PODS)}


def url(number: int) -> str:
    return f"http://10.0.{number // 256}.{number % 256}:8000"


def add_pods(gateway: Gateway) -> None:
    reading = dict.fromkeys((*COUNTERS, *(f"{PROMPT_TOKENS_BY_SOURCE} s{at}" for at in range(3))), 1.0)
    for number in range(PODS):
        pod = WatchedPod(DiscoveredPod(url(number), f"pool-{number % POOLS}"))
        pod.apply_health(ProbeResult.HEALTHY, 0.0)
        pod.apply_health(ProbeResult.UNREACHABLE, 1.0)
        pod.apply_metrics(MetricsPage({0: EngineReading(1, 1, 0.5, 100, 16, 1, counters=reading)}), 0.0)
        assert pod.breaker.state is BreakerState.OPEN
        gateway.watcher._pods[pod.url] = pod
        models = frozenset(f"m{at}" for at in range(MODELS) if at % POOLS == number % POOLS)
        gateway.router.put_pod(Pod(pod.url, PodState.READY, models, pool=f"pool-{number % POOLS}"))
        gateway.router.reshape_pod(pod.url, (EngineShape(kv_tokens=100),))
        gateway.watcher._count_engines(pod.url, pod.metrics or MetricsPage())
    gateway.watcher.census.sources.append(Nodes([]))


def an_end(draw: random.Random, number: int) -> Outcome:
    """One of many ends of requests: of known and invented models, in every tier, with every reason."""
    reason = draw.choice(tuple(Reason)) if draw.random() < 0.5 else None
    model = draw.choice([f"m{draw.randrange(MODELS)}", f"invented-{number}"])
    attempt = an_attempt(engine=url(draw.randrange(PODS)), result=draw.choice(tuple(AttemptStatus)).value)
    return an_outcome(
        request=a_request(id=str(number), model=model),
        tenant=f"tenant-{number % TENANTS}",
        tier=draw.choice(TIERS),
        reason=reason,
        status=draw.choice((200, 400, 429, 499, 500, 502, 503, 504)),
        slo_met=draw.choice((True, False)),
        attempts=(attempt,),
    )


@pytest.mark.parametrize("requests", [30_000])
async def test_series_stay_below_the_stated_bound(requests: int) -> None:
    """300 pods, 10,000 tenants, invented models, every reason: and more requests make no more series."""
    settings, _ = read_settings(SETTINGS, {})
    gateway = build(settings, None)
    try:
        add_pods(gateway)
        count, draw = gateway.pipeline.observers[0], random.Random(1)
        for number in range(requests):
            count(an_end(draw, number))
        first = series(gateway)
        for number in range(requests, 2 * requests):
            count(an_end(draw, number))
        second = series(gateway)
    finally:
        await gateway.probes.close()
    assert sum(second.values()) <= MAX_SERIES, sorted(second.items(), key=lambda each: -each[1])[:20]
    assert sum(second.values()) <= sum(first.values()) * 1.1
    assert {name for name in second if "tenant" in name} >= {"hearth_tenant_requests", "hearth_tenant_rejections"}
    assert second["hearth_tenant_requests"] == 101


def series(gateway: Gateway) -> dict[str, int]:
    """Series by family, without the timestamps of their creation."""
    return {
        family.name: sum(not sample.name.endswith("_created") for sample in family.samples)
        for family in gateway.registry.collect()
    }
