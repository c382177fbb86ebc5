"""The fleet as JSON values for the admin port: the state of each pod, and what is known of its engines."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from gateway.discovery.aggregator import PodAggregator
from gateway.fleet.pod_state import WatchedPod
from gateway.replica_sync.peer_load import NO_LOAD, LoadBySlot, SlotLoad, own_load
from routing.decision.placement import APPROXIMATE, PRECISE
from routing.decision.router import Router
from routing.pods import Engine, PodState


def show_fleet(
    router: Router,
    watched: Iterable[WatchedPod],
    now_s: float,
    theirs: LoadBySlot | None = None,
    census: PodAggregator | None = None,
) -> dict[str, Any]:
    """Return pods with their engines, models with their pods, and sources with their last report."""
    models = {
        model: {"pods": [pod.url for pod in pods], "bytes_per_token": round(router.counters[model].size_per_token, 3)}
        for model, pods in router.fleet.models().items()
    }
    pods = [_show_pod(router, pod, now_s, theirs or {}) for pod in watched]
    if census is None:
        return {"pods": pods, "models": models}
    sources = census.sources_by_pod()
    for pod in pods:
        pod["sources"] = sources.get(str(pod["url"]), [])
    return {"pods": pods, "models": models, "sources": show_sources(census, now_s)}


def show_sources(census: PodAggregator, now_s: float) -> list[dict[str, object]]:
    """Return the sources of pods in order of precedence, each with its last report."""
    snapshots = ((source, census.last_snapshot(source)) for source in census.sources)
    return [
        {
            "name": source.name,
            "pods": len(word.pods) if word else None,
            "last_update_age_s": _age(now_s, word.at_s) if word else None,
            "last_error": source.trouble or None,
        }
        for source, word in snapshots
    ]


def _show_pod(router: Router, pod: WatchedPod, now_s: float, theirs: LoadBySlot) -> dict[str, object]:
    known = router.fleet.pod(pod.url)
    return {
        "url": pod.url,
        # As the router has it: a probe may know more, but the pod is not chosen before all is known of it.
        "state": known.state if known else pod.standing(),
        "region": pod.discovered.region,
        "pool": pod.discovered.pool,
        "facts": pod.discovered.facts.to_mapping(),
        "hold": pod.discovered.held,
        "is_held_for_finding": pod.is_held_for_finding,
        "takes_priority": bool(known and known.takes_priority),
        "health": pod.health,
        "last_error": pod.problem or None,
        "models": sorted(known.models) if known else [],
        "adapters": sorted(known.adapters) if known else [],
        "ready_for_s": _age(now_s, known.ready_since_s) if known and known.state is PodState.READY else None,
        "breaker": {"state": pod.breaker.state, "failures": pod.breaker.failures, "open_count": pod.breaker.open_count},
        "scrape_age_s": _age(now_s, pod.scraped_s),
        "engines": [_show_engine(router, engine, theirs) for engine in known.engines] if known else [],
    }


def _show_load(load: SlotLoad) -> dict[str, int]:
    return {
        "running": load.running,
        "prefill_tokens": round(load.prefill_tokens),
        "kv_tokens": round(load.kv_tokens),
    }


def _show_engine(router: Router, engine: Engine, theirs: LoadBySlot) -> dict[str, object]:
    slot, ledger, costs = engine.slot, router.ledger, router.costs
    external = ledger.external[slot]
    # Empty where its KV events are reliable, None where they are not followed.
    reason = router.unreliable_engines.get(engine.name)
    return {
        "name": engine.name,
        "dp_rank": engine.rank,
        "role": engine.role,
        "kv_capacity_tokens": engine.kv_tokens,
        "block_tokens": engine.block_tokens,
        "own_load": _show_load(own_load(ledger, slot, theirs)),
        "peer_load": _show_load(theirs.get(slot, NO_LOAD)),
        "external_load": {
            "running": external.running,
            "waiting": external.waiting,
            "kv_tokens": round(external.kv_tokens),
        },
        "cost_model": {
            "prefill_overhead_s": round(costs.prefill_overhead_s[slot], 6),
            "prefill_tokens_per_s": round(1 / costs.seconds_per_token[slot], 1),
            "step_base_s": round(costs.step_base_s[slot], 6),
            "step_per_sequence_s": round(costs.step_per_sequence_s[slot], 7),
            "residence_s": round(costs.residence_s[slot], 3),
        },
        "cache_source": APPROXIMATE if reason != "" else PRECISE,
        "unreliable_reason": reason or None,
        "approximate_index_bytes": router.index.size_of(slot),
        "kv_store_hit_ratio": round(router.stores.shares.get(slot, 0.0), 3),
    }


def _age(now_s: float, then_s: float) -> float | None:
    """Return the seconds since, None if it never was or always has been."""
    return round(now_s - then_s, 3) if isfinite(then_s) else None
