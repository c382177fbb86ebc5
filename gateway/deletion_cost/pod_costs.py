"""What a gateway shows of its fleet, as costs by the address of each pod. Pure: JSON of the admin port in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from supply.deletion_cost import PodLoad, deletion_costs

PoolKey = tuple[str, str]
"""Name of the pool and role."""


def costs_by_address(
    scale: Mapping[str, Any], fleet: Mapping[str, Any], known: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the cost of each pod that is to go, by its IP address. None where the figures may not be acted on.

    `scale`, `fleet`: answers of `GET /scale` and `GET /fleet`; `known`: costs that pods have now, by address. A pool
    falls to the lower of what is desired and what is needed: the need falls first, and the count only after a while.
    """
    if scale["mode"] != "act" or not scale["is_known"]:
        return None
    loads = _loads(fleet, known)
    costs: dict[str, int] = {}
    for pool in scale["pools"]:
        min_engines = pool["rails"]["min_engines"]
        if min_engines is None:
            continue
        engines = max(min(int(pool["desired_engines"]), int(pool["needed_engines"])), int(min_engines))
        costs.update(deletion_costs(loads.get((pool["pool"], pool["role"]), ()), engines))
    return costs


def _loads(fleet: Mapping[str, Any], known: Mapping[str, int]) -> Mapping[PoolKey, list[PodLoad]]:
    """Return the pods of each pool. A pod without engines has not reported any and counts as one."""
    loads: defaultdict[PoolKey, list[PodLoad]] = defaultdict(list)
    for pod in fleet["pods"]:
        address = urlsplit(str(pod["url"])).hostname
        label = pod["pool"] or min(set(pod["models"]) - set(pod["adapters"]), default="")
        if address is None or not label:
            continue
        engines = pod["engines"]
        role = engines[0]["role"] if engines else str(pod["facts"].get("role", "either"))
        load = PodLoad(
            address,
            engines=max(1, len(engines)),
            is_drained=pod["state"] == "draining",
            is_ready=pod["state"] == "ready",
            running=sum(_running(engine) for engine in engines),
            cached_bytes=sum(int(engine["approximate_index_bytes"]) for engine in engines),
            cost=known.get(address),
        )
        listed = loads[label, role]
        same = next((at for at, other in enumerate(listed) if other.name == address), None)
        if same is None:
            listed.append(load)
        else:  # Several servers of one pod go together.
            other = listed[same]
            listed[same] = replace(
                other,
                engines=other.engines + load.engines,
                is_drained=other.is_drained and load.is_drained,
                is_ready=other.is_ready or load.is_ready,
                running=other.running + load.running,
                cached_bytes=other.cached_bytes + load.cached_bytes,
            )
    return loads


def _running(engine: Mapping[str, Any]) -> int:
    return int(engine["own_load"]["running"] + engine["peer_load"]["running"] + engine["external_load"]["running"])
