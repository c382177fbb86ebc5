"""`python -m tests.page.stage` serves an admin port with a fleet and tenants of any size behind it, without engines.

The router, the watched pods and the totals are the production ones; their contents are drawn from a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from msgspec.structs import asdict

from cascade.record import ESCALATED, KEPT, UNJUDGED, CascadeResult, CascadeStep
from gateway.cascades.cascades import Cascades
from gateway.cascades.shadow_sampling import GuaranteeStatus
from gateway.config.discovery import DiscoveredPod
from gateway.config.fields import Secret
from gateway.discovery.aggregator import PodAggregator
from gateway.discovery.source import StaticSource
from gateway.fleet.breaker import CircuitBreaker
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.probe import ProbeResult
from gateway.fleet.watcher import FleetWatcher
from gateway.observe.admin import AdminBackend, admin_app
from gateway.observe.metrics.cascades import CascadeCounters, show_usage
from gateway.observe.metrics.request_groups import RequestGroup
from gateway.observe.metrics.tiers import QueuedRequests
from gateway.observe.operators.outcome_totals import OutcomeTotals
from gateway.observe.operators.overview import PageParts
from gateway.observe.receipts import ReceiptStore
from gateway.pipeline.record import Outcome
from gateway.replica_sync.sync import ReplicaSync
from gateway.runtime.addresses import Address
from gateway.runtime.metric_families import TenantLabels
from gateway.runtime.ports import serve_app
from gateway.scaling.figures import SpillFigure, SplitFigure
from routing.candidates import CandidateShown
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason
from routing.request import Usage
from scorers.registry import routings
from supply.preference import SpillReason
from supply.split_advice import SplitVerdict
from tests.gateway.samples import a_request, an_attempt, an_outcome, count

MODELS = ("qwen3.6-27b", "qwen3.5-35b-a3b", "qwen3.5-397b-a17b")
POOLS = {MODELS[0]: "h100", MODELS[1]: "l40s", MODELS[2]: "h200-pairs"}
TIERS = ("gold", "silver", "bronze")
SICK = {
    7: PodState.OPEN_CIRCUIT,
    21: PodState.SUSPECT,
    40: PodState.UNREADY,
    55: PodState.DRAINING,
    60: PodState.STARTING,
}


class Stage:
    """The components behind the admin port."""

    def __init__(self, *, pods: int = 12, tenants: int = 30, seed: int = 1, names: Sequence[str] = ()) -> None:
        """`names`: of tenants, models and pools beside the drawn ones; a test passes hostile ones."""
        self.draw = random.Random(seed)
        self.router = Router(routings()["warm"])
        self.receipts = ReceiptStore()
        self.totals = OutcomeTotals(_price)
        self.cascade_counters = CascadeCounters(TenantLabels())
        self.drained: list[str] = []
        self.started_s = time.time() - 7260
        self.names = names
        self.watched = [self._put_pod(number) for number in range(pods)]
        self.urls = [pod.url for pod in self.watched]
        census = PodAggregator([StaticSource([pod.discovered for pod in self.watched])])
        census.update(census.sources[0], tuple(pod.discovered for pod in self.watched), 0.0)
        self.watcher = cast(
            "FleetWatcher", SimpleNamespace(pods=self.watched, census=census, drain=self._drain, models={})
        )
        self.sync: ReplicaSync | None = cast("ReplicaSync", _sync(self.draw))
        for number in range(tenants):
            self.end(f"tenant-{number:05d}")
        for name in names:
            self.end(name, model=name, tier=name)

    def _put_pod(self, number: int) -> WatchedPod:
        draw, model = self.draw, MODELS[number % len(MODELS)]
        url = f"http://10.{number // 250}.{number % 250}.17:8000"
        role = (Role.EITHER, Role.EITHER, Role.PREFILL if number % 6 == 2 else Role.DECODE)[number % 3]
        state = SICK.get(number, PodState.READY)
        pool = self.names[number % len(self.names)] if self.names and number < len(self.names) else POOLS[model]
        facts = PodFacts(role=role, version="0.32.0", tp=2, region="eu-central")
        models = frozenset({model, *self.names})
        self.router.put_pod(Pod(url, state, models, pool=pool, region="eu-central", facts=facts))
        self.router.reshape_pod(url, [EngineShape(None, role, 480_000, 16)])
        (engine,) = cast("Pod", self.router.fleet.pod(url)).engines
        ledger = self.router.ledger
        if state in (PodState.READY, PodState.DRAINING):
            ledger.running[engine.slot] = draw.randrange(64)
            ledger.kv_tokens[engine.slot] = draw.random() ** 0.5 * 440_000
            ledger.prefill_tokens[engine.slot] = float(draw.randrange(40_000))
        self.router.costs.step_base_s[engine.slot] = 0.018 * (0.9 + 0.2 * draw.random())
        pod = WatchedPod(
            DiscoveredPod(url, pool, facts),
            breaker=CircuitBreaker(),
            health=ProbeResult.UNREACHABLE if state is PodState.OPEN_CIRCUIT else ProbeResult.HEALTHY,
            was_healthy=True,
        )
        pod.scraped_s = asyncio.get_running_loop().time() - draw.random() * 5
        if state is PodState.UNREADY:
            pod.health = ProbeResult.NOT_READY
        if state is PodState.STARTING:
            pod.problem = "its /v1/models lists no model of model_list: check --served-model-name"
        return pod

    def _drain(self, url: str, *, drained: bool = True) -> bool:
        known = self.router.fleet.pod(url)
        if known is None:
            return False
        self.drained.append(url)
        self.router.put_pod(replace(known, state=PodState.DRAINING if drained else PodState.READY))
        return True

    def end(self, tenant: str, *, model: str | None = None, tier: str | None = None, **changes: Any) -> Outcome:
        """Count a request of a tenant that ends now, drawn where nothing else is given."""
        draw = self.draw
        model = model or MODELS[draw.randrange(3)]
        tier = tier or TIERS[min(2, int(draw.random() * 3.2))]
        cached = draw.randrange(0, 1900)
        values: dict[str, Any] = {
            "request": a_request(id=f"{draw.getrandbits(96):024x}", model=model, session=f"{draw.getrandbits(32):08x}"),
            "at_s": time.time() - draw.random() * 60,
            "tenant": tenant,
            "tier": tier,
            "slo_met": draw.random() < 0.97,
            "usage": Usage(2000, draw.randrange(20, 400), cached),
            "key_id": "key-1",
            "queue_wait_s": draw.random() * 0.05,
            "ttft_s": 0.18 + draw.random() * 0.3,
        }
        values["duration_s"] = values["ttft_s"] + draw.random() * 4
        values["decode_s"] = values["duration_s"] - values["ttft_s"]
        values["attempts"] = (self.attempt(values["ttft_s"] - values["queue_wait_s"], cached),)
        if not changes and draw.random() < 0.06:
            reason = (Reason.OVERLOADED, Reason.RATE_LIMITED_TOKENS, Reason.QUEUE_TIMEOUT)[draw.randrange(3)]
            changes = rejected(reason)
        outcome = an_outcome(**values | changes)
        count(self.totals, outcome)
        self.receipts.on_outcome(outcome)
        return outcome

    def end_in_cascade(self, tenant: str) -> Outcome:
        """Count a request to the cascade `auto`."""
        escalates = self.draw.random() < 0.3
        small = CascadeStep(MODELS[1], ESCALATED if escalates else KEPT, "window", 0.7, 2000, 900, 80, 0.002, 0.08)
        large = CascadeStep(MODELS[2], UNJUDGED, "", None, 2000, 1200, 120, 0.02)
        steps = (small, large) if escalates else (small,)
        result = CascadeResult(
            *("auto", "chat", MODELS[1], steps),
            cost=sum(step.cost for step in steps),
            wasted_cost=small.cost if escalates else 0.0,
            cost_always_largest=0.02,
            cost_always_first=0.002,
        )
        outcome = self.end(tenant, model="auto", tier="gold", cascade=result)
        self.cascade_counters.on_outcome(outcome)
        return outcome

    def attempt(self, ttft_s: float, cached: int) -> Any:
        draw, rows = self.draw, list[CandidateShown]()
        chosen = self.urls[draw.randrange(len(self.urls))] if self.urls else "http://a:1"
        for number in range(min(8, max(1, len(self.urls)))):
            engine = chosen if number == 0 else self.urls[draw.randrange(len(self.urls))]
            terms = {"prefill_time": ttft_s * (0.6 + 0.2 * number), "interference": 0.01 * number, "kv_headroom": 0.004}
            rows.append(
                CandidateShown(engine, number == 0, sum(terms.values()), terms, max(0, cached - 100 * number), 400, 7)
            )
        return an_attempt(
            engine=chosen,
            candidates=tuple(rows),
            candidate_count=len(self.urls),
            predicted_input_tokens=2000,
            predicted_cached_input_tokens=max(0, cached - 50),
            actual_cached_input_tokens=cached,
            predicted_ttft_s=ttft_s * 0.9,
            actual_ttft_s=ttft_s,
        )

    def view(self) -> PageParts:
        """Return what the page is shown."""
        return PageParts(
            router=self.router,
            watcher=self.watcher,
            counted=lambda: self.totals,
            queued=lambda: [QueuedRequests("bronze", MODELS[0], 14, 3.2)],
            open_requests=lambda: 311,
            open_connections=lambda: 420,
            early_rejections=lambda: {Reason.INVALID_KEY: 3},
            replica_sync=lambda: self.sync,
            quotas=cast("Any", SimpleNamespace(leases=SimpleNamespace(is_partitioned=False, replicas=3))),
            clock=asyncio.get_running_loop().time,
            wall_clock=time.time,
            started_s=self.started_s,
            advice=_advice,
        )

    def app(self, token: str | None = None) -> web.Application:
        """Return the application of the admin port."""

        async def reload() -> dict[str, object]:
            return {"reloaded": True}

        return admin_app(
            AdminBackend(
                receipts=self.receipts,
                router=self.router,
                watcher=self.watcher,
                settings=dict,
                reload=reload,
                clock=asyncio.get_running_loop().time,
                token=Secret(token) if token else None,
                cascades=_cascades(),
                cascade_usage=partial(show_usage, self.cascade_counters),
                view=self.view(),
            )
        )


def rejected(reason: Reason, status: int = 429) -> dict[str, Any]:
    """Return the fields of a rejected request."""
    return {
        "status": status,
        "reason": reason,
        "usage": None,
        "attempts": (),
        "ttft_s": None,
        "slo_met": False,
        "duration_s": 0.002,
        "decode_s": None,
        "finish_reason": None,
        "error": "No engine can meet the objective.",
    }


def _price(group: RequestGroup) -> float:
    return group.uncached_tokens * 4e-7 + group.cached_tokens * 4e-8 + group.output_tokens * 1.6e-6


def _sync(draw: random.Random) -> object:
    now_s = asyncio.get_running_loop().time()
    peers = [
        SimpleNamespace(
            replica_id=draw.getrandbits(62), last_update_s=now_s, open=dict.fromkeys(range(31)), has_gap=False
        )
        for _ in range(3)
    ]
    applier = SimpleNamespace(applied=120_411, rejected=0, gaps=2, replicas=peers)
    return SimpleNamespace(
        applier=applier,
        replica_id=77,
        is_connected=True,
        sent=44_120,
        unsent=0,
        overflowed=0,
        unreadable=0,
    )


def _cascades() -> Cascades:
    status = GuaranteeStatus(
        is_promised=True,
        max_loss=0.01,
        examples=2400,
        shadow_samples=311,
        agreement=0.991,
        shadow_cost=0.4,
        frozen=(False, False),
        raised=(0, 0),
    )
    cascade = SimpleNamespace(models=[SimpleNamespace(name=name) for name in MODELS[1:]])
    return cast(
        "Cascades",
        SimpleNamespace(
            by_name={"auto": cascade},
            unused_guarantee=lambda _: None,
            guarantee_status=lambda _: status,
            collector=None,
        ),
    )


def _advice() -> dict[str, Any]:
    """Return what supply advises: one model spills, for another one a split pays."""
    spill = SpillFigure(0.22, SpillReason.OVERLOAD.value, ["h100"], ["cloud-h100"], ["silver", "bronze"])
    split = SplitFigure(
        *(SplitVerdict.SPLIT.value, "h200-pairs", "h200-pairs", "l40s", 24, 9, 11),
        colocated_per_hour=96.0,
        split_per_hour=71.5,
        colocated_per_million=1.9,
        split_per_million=1.4,
        prefill_s=5.1,
        decode_s=7.4,
        price_ratio=2.5,
        transfer_s=0.02,
    )
    return {
        "spill": {"mode": "advise", "models": {MODELS[0]: asdict(spill)}},
        "split": {MODELS[2]: asdict(split) | {"saving_per_hour": 24.5}},
    }


@asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on the loopback address. Yields its URL."""
    runner, (where, *_) = await serve_app("admin", app, Address("127.0.0.1", port))
    try:
        yield f"http://{where}"
    finally:
        await runner.cleanup()


async def _main(port: int, pods: int, tenants: int) -> None:
    stage = Stage(pods=pods, tenants=tenants)
    for _ in range(400):
        stage.end_in_cascade(f"tenant-{stage.draw.randrange(tenants):05d}")
    async with served(stage.app(), port) as url:
        print(url, flush=True)
        while True:
            for _ in range(20):
                stage.end(f"tenant-{stage.draw.randrange(tenants):05d}")
            await asyncio.sleep(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.page.stage")
    parser.add_argument("--port", type=int, default=9191)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=10_000)
    given = parser.parse_args()
    asyncio.run(_main(given.port, given.pods, given.tenants))
