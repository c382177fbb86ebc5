"""What workers show, put together as one gateway would show it. JSON values in and out; asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Shown = dict[str, Any]

OWN_LOAD = ("running", "prefill_tokens", "kv_tokens")
"""What each worker counts of its own requests on an engine."""


def merge_receipts(lists: Mapping[str, list[Shown]], limit: int) -> list[Shown]:
    """The latest first, each with the worker that has it."""
    every = [{**receipt, "worker": worker} for worker, held in lists.items() for receipt in held]
    return sorted(every, key=lambda receipt: receipt["at_s"], reverse=True)[:limit]


def merge_fleets(fleets: Mapping[str, Shown]) -> Shown:
    """The fleet as the first worker sees it, with the load of all. `fleets`: by worker.

    Where workers see a pod differently, `standings` says how each does: every worker has breakers of its own.
    """
    if not fleets:
        return {"pods": [], "models": {}}
    whole, *others = fleets.values()
    pods = {pod["url"]: pod for pod in whole["pods"]}
    for fleet in others:
        for pod in fleet["pods"]:
            if (known := pods.get(pod["url"])) is None:
                whole["pods"].append(pod)
                pods[pod["url"]] = pod
            else:
                _add_load(known, pod)
                known["breaker"]["opened"] += pod["breaker"]["opened"]
    for url, standings in _standings(fleets).items():
        if len(set(standings.values())) > 1:
            pods[url]["standings"] = standings
    return whole


def merge_drained(answers: Iterable[Shown]) -> Shown:
    """A pod as the workers left it: what still runs there is the sum of all."""
    first, *others = answers
    return {**first, "running": first["running"] + sum(other["running"] for other in others)}


def _add_load(known: Shown, pod: Shown) -> None:
    engines = {engine["name"]: engine for engine in known["engines"]}
    for engine in pod["engines"]:
        if (same := engines.get(engine["name"])) is None:
            known["engines"].append(engine)
            continue
        for word in OWN_LOAD:
            more = engine["ledger"][word]
            same["ledger"][word] += more
            # What the first heard of its sibling is load of this gateway too, and no longer that of others.
            same["others"][word] = max(0, same["others"][word] - more)


def _standings(fleets: Mapping[str, Shown]) -> dict[str, dict[str, str]]:
    """URL to worker to standing."""
    found: dict[str, dict[str, str]] = {}
    for worker, fleet in fleets.items():
        for pod in fleet["pods"]:
            found.setdefault(pod["url"], {})[worker] = pod["standing"]
    return found
