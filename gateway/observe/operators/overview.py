"""What the operators' page shows of a gateway process: compact rows of pods, tiers and tenants, and its peers.

Rows are arrays in the order of their columns, which each answer names once: a thousand pods and ten thousand tenants
are read every few seconds. With several workers each answers for itself; the page adds them up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from math import isfinite
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from gateway.diagnosis.doctor import Doctor, brief_findings
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.view import show_sources
from gateway.fleet.watcher import FleetWatcher
from gateway.limits.accounts import QuotaEnforcer
from gateway.observe.metrics.pools import pools_of
from gateway.observe.metrics.tiers import QueuedRequests
from gateway.observe.operators.outcome_totals import (
    PERIOD_S,
    POD_COLUMNS,
    TENANT_COLUMNS,
    TIER_COLUMNS,
    OutcomeTotals,
    RecentTotals,
    TierTotals,
)
from gateway.replica_sync.sync import ReplicaSync
from routing.decision.router import Router
from routing.pods import PodState
from routing.rejection import Reason

SLICE_ROWS = 64
"""Rows that are made at a stretch, in about a millisecond: requests are served between two slices."""

MAX_FINDINGS, MAX_FINDING_PODS = 50, 8
"""Findings that are shown, and pods of each."""

NO_COUNTS = [0.0] * len(POD_COLUMNS)


class PodRow(Struct, array_like=True, frozen=True, gc=False):
    """One pod. Load counts this gateway's requests, those of peers, and external ones; times are in seconds."""

    url: str
    state: str
    pool: str | None
    region: str | None
    roles: list[str]
    models: list[str]
    sources: list[str]
    health: str | None
    last_error: str | None
    held_by_source: str | None
    breaker_failures: int
    breaker_opens: int
    ready_for_s: float | None
    scrape_age_s: float | None
    engines: int
    running: int
    external_running: int
    external_waiting: int
    pending_prefill_tokens: int
    kv_tokens: int
    kv_capacity_tokens: int | None
    precise_engines: int
    """Engines whose cached tokens are followed by their KV events."""
    unreliable_reason: str | None
    prefill_tokens_per_s: float
    step_s: float
    recent: list[float]
    """`POD_COLUMNS`, recent."""


@dataclass(frozen=True, slots=True)
class PageParts:
    """The parts of a gateway that the page shows, and when it started (Unix time)."""

    router: Router
    watcher: FleetWatcher
    counted: Callable[[], OutcomeTotals]
    """Returns the totals, with all requests that have ended."""
    queued: Callable[[], Iterable[QueuedRequests]]
    open_requests: Callable[[], int]
    open_connections: Callable[[], int]
    early_rejections: Callable[[], Mapping[Reason, int]]
    """Rejections before a request was read, by reason."""
    replica_sync: Callable[[], ReplicaSync | None]
    quotas: QuotaEnforcer
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    started_s: float
    doctor: Doctor | None = None
    """Diagnosis of the fleet; None where it is off, or in another worker."""
    advice: Callable[[], dict[str, Any]] | None = None
    """Returns what supply decisions advise beside the number of engines; None where they are off."""

    @property
    def epoch(self) -> str:
        """Tells the totals of this process from those of one that has replaced it."""
        return f"{round(self.started_s * 1e6):x}"

    def overview(self) -> dict[str, Any]:
        """Return the process, its sources, tiers and peers."""
        return _show_overview(self)

    async def pods(self) -> dict[str, Any]:
        """Return a row per pod, with the counts of its recent attempts."""
        return await _show_pods(self)

    async def tenants(self, cursors: list[str], max_rows: int) -> dict[str, Any]:
        """Return the tenants that have changed since the cursor of this process, if it is one of `cursors`.

        Rows hold the totals since the start and the recent ones. The oldest changes come first; `more` says that others
        remain, which the returned cursor leads to.
        """
        return await _show_tenants(self, cursors, max_rows)


async def _show_pods(view: PageParts) -> dict[str, Any]:
    now_s, period = view.clock(), int(view.wall_clock() // PERIOD_S)
    sources, totals = view.watcher.census.sources_by_pod(), view.counted().pods
    rows = list[PodRow]()
    for number, pod in enumerate([*view.watcher.pods]):
        rows.append(_pod_row(view.router, pod, now_s, sources.get(pod.url, []), _recent(totals.get(pod.url), period)))
        if number % SLICE_ROWS == SLICE_ROWS - 1:
            await asyncio.sleep(0)
    return {
        "epoch": view.epoch,
        "columns": [each.name for each in fields(PodRow)],
        "recent_columns": POD_COLUMNS,
        "rows": rows,
    }


def _recent(totals: RecentTotals | None, period: int) -> list[float]:
    return NO_COUNTS if totals is None else _rounded(totals.recent(period))


def _pod_row(router: Router, pod: WatchedPod, now_s: float, sources: list[str], recent: list[float]) -> PodRow:
    known = router.fleet.pod(pod.url)
    ledger, costs = router.ledger, router.costs
    engines = known.engines if known else ()
    slots = [engine.slot for engine in engines]
    external = [ledger.external[slot] for slot in slots]
    reasons = [router.unreliable_engines.get(engine.name) for engine in engines]
    capacity = [engine.kv_tokens for engine in engines if engine.kv_tokens]
    return PodRow(
        url=pod.url,
        state=(known.state if known else pod.standing()).value,
        pool=pod.discovered.pool,
        region=pod.discovered.region,
        roles=sorted({engine.role.value for engine in engines}),
        models=sorted(known.models) if known else [],
        sources=sources,
        health=None if pod.health is None else pod.health.value,
        last_error=pod.problem or None,
        held_by_source=None if pod.discovered.held is None else pod.discovered.held.value,
        breaker_failures=pod.breaker.failures,
        breaker_opens=pod.breaker.open_count,
        ready_for_s=_age(now_s, known.ready_since_s) if known and known.state is PodState.READY else None,
        scrape_age_s=_age(now_s, pod.scraped_s),
        engines=len(engines),
        running=sum(ledger.running[slot] for slot in slots),
        external_running=round(sum(each.running for each in external)),
        external_waiting=round(sum(each.waiting for each in external)),
        pending_prefill_tokens=round(sum(ledger.prefill_tokens[slot] for slot in slots)),
        kv_tokens=round(sum(ledger.kv_tokens[slot] for slot in slots) + sum(each.kv_tokens for each in external)),
        kv_capacity_tokens=sum(capacity) if capacity else None,
        precise_engines=reasons.count(""),
        unreliable_reason=next(filter(None, reasons), None),
        prefill_tokens_per_s=round(sum(1 / costs.seconds_per_token[slot] for slot in slots), 1),
        step_s=round(max((costs.step_base_s[slot] for slot in slots), default=0.0), 6),
        recent=recent,
    )


async def _show_tenants(view: PageParts, cursors: list[str], max_rows: int) -> dict[str, Any]:
    since = next((int(number) for epoch, _, number in map(_parted, cursors) if epoch == view.epoch), 0)
    period = int(view.wall_clock() // PERIOD_S)
    totals = view.counted()
    changed = list(totals.changed_tenants(since))
    given = changed[-max_rows:] if max_rows else []
    given.reverse()
    last = given[-1][1].version if given else since
    rows = list[list[Any]]()
    for number, (name, tenant) in enumerate(given):
        rows.append(_tenant_row(name, tenant, period))
        if number % SLICE_ROWS == SLICE_ROWS - 1:
            await asyncio.sleep(0)
    return {
        "epoch": view.epoch,
        "cursor": f"{view.epoch}-{last}",
        "more": len(given) < len(changed),
        "tenants": len(totals.tenants),
        "period": period,
        "columns": TENANT_COLUMNS,
        "rows": rows,
    }


def _parted(cursor: str) -> tuple[str, str, str]:
    epoch, dash, number = cursor.rpartition("-")
    return epoch, dash, number if number.isascii() and number.isdigit() and len(number) < 20 else "0"


def _tenant_row(name: str, totals: RecentTotals, period: int) -> list[Any]:
    """Name, totals, recent totals, rejections by reason, recent rejections, period of the last change."""
    return [
        name,
        _rounded(totals.total),
        _rounded(totals.recent(period)),
        totals.reasons or {},
        totals.rejected_recently(period),
        totals.period,
    ]


def _show_overview(view: PageParts) -> dict[str, Any]:
    now_s, period = view.clock(), int(view.wall_clock() // PERIOD_S)
    states: dict[str, int] = {state.value: 0 for state in PodState}
    for pod in view.router.fleet.pods:
        states[pod.state.value] += 1
    pools = pools_of(view.router.fleet)
    return {
        "epoch": view.epoch,
        "version": version("hearth-gateway"),
        "started_s": round(view.started_s, 3),
        "now_s": round(view.wall_clock(), 3),
        "recent_s": round(PERIOD_S + view.wall_clock() % PERIOD_S),
        "requests_in_flight": view.open_requests(),
        "downstream_connections": view.open_connections(),
        "pods": states,
        "sources": show_sources(view.watcher.census, now_s),
        "early_rejections": view.early_rejections(),
        "tier_columns": TIER_COLUMNS,
        "tiers": [
            _tier_row(tier, model, pools.get(model), totals, period)
            for (tier, model), totals in sorted(view.counted().tiers.items())
        ],
        "queues": [
            {"tier": each.tier, "model": each.model, "requests": each.requests, "drain_s": round(each.backlog_s, 3)}
            for each in view.queued()
        ],
        "peers": _show_peers(view, now_s),
        "advice": view.advice() if view.advice is not None else {},
        "findings": []
        if view.doctor is None
        else [*islice(brief_findings(view.doctor.diagnosis.findings, MAX_FINDING_PODS), MAX_FINDINGS)],
    }


def _tier_row(tier: str, model: str, pool: str | None, totals: TierTotals, period: int) -> dict[str, Any]:
    ttft = totals.recent_ttft(period)
    return {
        "tier": tier,
        "model": model,
        "pool": pool,
        "total": _rounded(totals.total),
        "recent": _rounded(totals.recent(period)),
        "ttft_bounds_s": ttft.bounds,
        "ttft_counts": ttft.counts,
        "rejections": totals.reasons or {},
        "recent_rejections": totals.rejected_recently(period),
    }


def _show_peers(view: PageParts, now_s: float) -> dict[str, Any]:
    """Other workers and gateways, and whether limits are shared with them."""
    sync, leases = view.replica_sync(), view.quotas.leases
    shown: dict[str, Any] = {"replica_sync": None, "limits": None}
    if sync is not None:
        applier = sync.applier
        shown["replica_sync"] = {
            "replica": f"{sync.replica_id:016x}",
            "connected": sync.is_connected,
            "updates_sent": sync.sent,
            "updates_received": applier.applied,
            "updates_lost": {
                "not_connected": sync.unsent,
                "buffer_full": sync.overflowed,
                "undecodable": sync.unreadable,
                "invalid": applier.rejected,
                "gap": applier.gaps,
            },
            "peers": [
                {
                    "replica": f"{each.replica_id:016x}",
                    "last_update_age_s": round(max(0.0, now_s - each.last_update_s), 3),
                    "open_requests": len(each.open),
                    "has_gap": each.has_gap,
                }
                for each in islice(applier.replicas, 1_000)
            ],
        }
    if leases is not None:
        shown["limits"] = {"connected": not leases.is_partitioned, "gateways": leases.replicas}
    return shown


def _rounded(counts: Any) -> list[float]:
    return [round(count, 6) for count in counts]


def _age(now_s: float, then_s: float) -> float | None:
    return round(now_s - then_s, 1) if isfinite(then_s) else None
