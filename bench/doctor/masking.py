"""Half of the figures missing: which fields are unknown in one case. The same fields of all pods are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from random import Random
from typing import Any, TypeVar

from diagnosis.facts import (
    BuildFacts,
    EngineFlags,
    EngineWindow,
    FleetFacts,
    GatewayLoad,
    GatewayView,
    PodObservation,
    SpeculationWindow,
    TransferWindow,
)

KEPT = frozenset({"rank", "start_s", "end_s", "is_restarted", "read_at_s", "name", "accepted_by_position", "rollout"})
"""What says of which engine and when the rest is."""

GROUPS = (EngineWindow, EngineFlags, BuildFacts, GatewayView, GatewayLoad, SpeculationWindow, TransferWindow)

COMPLETE_GROUPS = ("environment", "hardware", "clocks", "times")

T = TypeVar("T")


class Mask:
    """One draw: every figure is missing with probability one half."""

    def __init__(self, draws: Random) -> None:
        self._missing: Mapping[type, dict[str, Any]] = {
            group: {field.name: None for field in fields(group) if field.name not in KEPT and draws.random() < 0.5}
            for group in GROUPS
        }
        self._groups = {name for name in COMPLETE_GROUPS if draws.random() < 0.5}

    def facts(self, facts: FleetFacts) -> FleetFacts:
        """Return the facts without what is missing."""
        return replace(
            facts,
            pods=tuple(self._pod(pod) for pod in facts.pods),
            gateways=tuple(self._without(gateway) for gateway in facts.gateways),
            clock_offsets_s={} if "clocks" in self._groups else facts.clock_offsets_s,
            times={} if "times" in self._groups else facts.times,
        )

    def _without(self, value: T) -> T:
        return replace(value, **self._missing[type(value)])  # type: ignore[type-var]

    def _pod(self, pod: PodObservation) -> PodObservation:
        return replace(
            pod,
            engines=tuple(self._engine(engine) for engine in pod.engines),
            requests=None if pod.requests is None else self._without(pod.requests),
            flags=None if pod.flags is None else self._without(pod.flags),
            build=None if pod.build is None else self._without(pod.build),
            environment=None if "environment" in self._groups else pod.environment,
            hardware=None if "hardware" in self._groups else pod.hardware,
        )

    def _engine(self, engine: EngineWindow) -> EngineWindow:
        kept = self._without(engine)
        return replace(
            kept,
            speculation=None if kept.speculation is None else self._without(kept.speculation),
            transfers=None if kept.transfers is None else self._without(kept.transfers),
        )
