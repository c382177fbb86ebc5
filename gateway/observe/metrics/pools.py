"""Figures of each pool: engines and what they cost, tokens by tenant, and the queues of prefill and decode by role.

A pod's pool is the one that discovery names; without one it is the pod's model. Time is an argument or a clock that is
passed in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.observe.metrics.request_groups import RequestGroup
from gateway.observe.metrics.tenants import KINDS
from gateway.replica_sync.peer_load import LoadBySlot, own_load
from gateway.runtime.guard import restarted
from gateway.runtime.metric_families import OTHER, Family, TenantLabels
from routing.decision.placement import AttemptReceipt
from routing.decision.router import Router
from routing.fleet import Fleet
from routing.pods import PodState

MAX_TOKEN_KEYS = 500
"""Combinations of pool and tenant with tokens of their own; beyond it tenants are `other`."""

TICK_S = 5.0
"""Seconds between two looks at which engines there are: the error of an engine's time when it joins or leaves."""

SECONDS_PER_HOUR = 3600.0

PoolRole = tuple[str, str]
"""Pool and role of engines, as label values."""

LABELS = ("pool", "role")


def pools_of(fleet: Fleet) -> dict[str, str]:
    """Map each model to the pool of its pods, or to itself if they name none or several."""
    named = {model: {pod.pool for pod in pods} for model, pods in fleet.models().items()}
    return {model: (next(iter(pools)) if len(pools) == 1 else None) or model for model, pools in named.items()}


class PoolNames:
    """The pools of engines and models, looked up once per version of the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = -1
        self._by_engine: dict[str, str] = {}
        self._by_model: dict[str, str] = {}

    def of(self, attempts: tuple[AttemptReceipt, ...], model: str) -> str:
        """Return the pool of the engine that was tried last, else of the model (a label value)."""
        if self._version != self._fleet.version:
            self._refresh()
        pool = self._by_engine.get(attempts[-1].engine) if attempts else None
        if pool is None and attempts:
            pool = self.of_engine(attempts[-1].engine)
        return self._by_model.get(model, model) if pool is None else pool

    def of_engine(self, engine: str) -> str | None:
        """Return the pool of an engine by its name; None where its pod has left."""
        if self._version != self._fleet.version:
            self._refresh()
        pool = self._by_engine.get(engine)
        if pool is None and (pod := self._fleet.pod(engine.partition("#")[0])) is not None:
            pool = self._by_engine[engine] = pod.pool_label
        return pool

    def _refresh(self) -> None:
        self._version = self._fleet.version
        self._by_engine.clear()
        self._by_model = pools_of(self._fleet)


class PoolTokens:
    """Tokens of answered requests by pool and tenant. The input of a pair belongs to its prefill engine's pool."""

    def __init__(self, names: PoolNames, labels: TenantLabels) -> None:
        self._names = names
        self._labels = labels
        self.by_key: dict[tuple[str, str], list[int]] = {}
        """By pool and tenant: tokens by `KINDS`."""

    def add(self, group: RequestGroup) -> None:
        """Count requests that have ended."""
        if not group.answered:
            return
        tenant, pool = self._labels.of(group.tenant), group.pool
        held = self._held(pool, tenant)
        held[2] += group.output_tokens
        last = group.outcome.attempts[-1] if group.outcome is not None and group.outcome.attempts else None
        if last is not None and last.prefill_engine is not None and last.fallback_reason is None:
            held = self._held(self._names.of_engine(last.prefill_engine) or pool, tenant)
        held[0] += group.uncached_tokens
        held[1] += group.cached_tokens

    def _held(self, pool: str, tenant: str) -> list[int]:
        held = self.by_key.get((pool, tenant))
        if held is None:
            key = (pool, tenant) if len(self.by_key) < MAX_TOKEN_KEYS else (pool, OTHER)
            held = self.by_key.setdefault(key, [0, 0, 0])
        return held

    def family(self) -> Family:
        """Return the metric family of this moment."""
        family = CounterMetricFamily(
            "hearth_pool_tokens", "Tokens of answered requests.", labels=("pool", "tenant", "kind")
        )
        for key, held in self.by_key.items():
            for kind, count in zip(KINDS, held, strict=True):
                family.add_metric((*key, kind), count)
        return family


class PoolMeter:
    """Adds up the time of all engines by pool and role, and its cost: idle engines cost as much as busy ones."""

    def __init__(self, fleet: Fleet, prices: Callable[[], Mapping[str, float]], clock: Callable[[], float]) -> None:
        """`prices`: cost of an engine-hour by pool; pools without one have no cost."""
        self._fleet = fleet
        self._prices = prices
        self._clock = clock
        self._since_s = clock()
        self.engines: Counter[PoolRole] = Counter()
        """Engines at the last look."""
        self.engine_s: dict[PoolRole, float] = {}
        self.cost: dict[str, float] = {}

    @restarted("pool costs")
    async def run(self) -> None:
        """Look every `TICK_S`, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """Add the time since the last look for the engines of then; count those of now."""
        now_s, prices = self._clock(), self._prices()
        passed_s, self._since_s = now_s - self._since_s, now_s
        for key, count in self.engines.items():
            self.engine_s[key] = self.engine_s.get(key, 0.0) + count * passed_s
            if (price := prices.get(key[0])) is not None:
                self.cost[key[0]] = self.cost.get(key[0], 0.0) + count * passed_s * price / SECONDS_PER_HOUR
        self.engines = Counter(
            (pod.pool_label, engine.role.value)
            for pod in self._fleet.pods
            if pod.state is not PodState.STARTING
            for engine in pod.engines
        )


@dataclass(frozen=True, eq=False)
class PoolCollector(Collector):
    """Shows engines, their cost and their queues at the moment of a scrape."""

    router: Router
    meter: PoolMeter
    peer_load: Callable[[], LoadBySlot]
    """The load that other gateways have placed on our engines."""
    waiting: Callable[[], Mapping[str, float]]
    """Requests that wait in engines' own queues by the last scrape, by name of the engine."""

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        meter = self.meter
        meter.look()
        engines = GaugeMetricFamily("hearth_pool_engines", "Engines of the pool.", labels=LABELS)
        seconds = CounterMetricFamily(
            "hearth_pool_engine_seconds", "Seconds of all engines of the pool in the fleet.", labels=LABELS
        )
        cost = CounterMetricFamily("hearth_pool_cost", "Engine-hours times price.", labels=("pool",))
        for key, count in meter.engines.items():
            engines.add_metric(key, count)
        for key, engine_s in meter.engine_s.items():
            seconds.add_metric(key, engine_s)
        for pool, amount in meter.cost.items():
            cost.add_metric((pool,), amount)
        yield from (engines, seconds, cost, *self._queues())

    def _queues(self) -> Iterator[Family]:
        ledger, costs, theirs, waiting = self.router.ledger, self.router.costs, self.peer_load(), self.waiting()
        queues: dict[PoolRole, list[float]] = {}
        for pod in self.router.fleet.pods:
            pool = pod.pool_label
            for engine in pod.engines:
                load = own_load(ledger, engine.slot, theirs)
                sums = queues.setdefault((pool, engine.role.value), [0.0] * 4)
                sums[0] += load.running
                sums[1] += load.prefill_tokens
                sums[2] += load.prefill_tokens * costs.seconds_per_token[engine.slot]
                sums[3] += waiting.get(engine.name, 0.0)
        shown = (
            ("hearth_pool_running_requests", "Sequences of this gateway on engines of the pool."),
            (
                "hearth_pool_pending_prefill_tokens",
                "Prompt tokens of this gateway's requests that the pool has not computed yet.",
            ),
            (
                "hearth_pool_prefill_queue_seconds",
                "Engine-seconds that the pending prefill tokens take at the learned rate.",
            ),
            ("hearth_pool_waiting_requests", "Requests in engines' own queues, as of the last scrape."),
        )
        for at, (name, words) in enumerate(shown):
            family = GaugeMetricFamily(name, words, labels=LABELS)
            for key, sums in queues.items():
                family.add_metric(key, sums[at])
            yield family
