"""Metrics of desired engines, bounded by the pools and tiers that the configuration and discovery name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.runtime.metric_families import Family
from gateway.scaling.controller import SupplyController
from gateway.scaling.external_scaler import ExternalScaler
from supply.split_advice import SplitVerdict

LABELS = ("model", "pool", "role")

MAX_TIER_SERIES = 1_024

STATUS_NAMES = {
    0: "ok",
    3: "invalid_argument",
    5: "not_found",
    9: "failed_precondition",
    14: "unavailable",
}


class SupplyCollector(Collector):
    """Shows the last decision, and the calls of autoscalers."""

    def __init__(self, controller: SupplyController, scaler: ExternalScaler | None) -> None:
        """`scaler`: None where this process has no listener."""
        self._controller = controller
        self._scaler = scaler

    def _advice(self) -> Iterator[Family]:
        """Return what is advised beside the number of engines, by model."""
        decision = self._controller.decision
        share = GaugeMetricFamily(
            "hearth_spill_share_ratio",
            "Share of the work that may leave the pools of the lowest rank, and has to, to keep all objectives.",
            labels=("model",),
        )
        for model, spill in decision.spill.items():
            share.add_metric((model,), spill.share)
        cost = GaugeMetricFamily(
            "hearth_split_cost_per_hour",
            "Cost per hour of the cheapest engines for the present work, at equal objectives, by layout.",
            labels=("model", "layout"),
        )
        advised = GaugeMetricFamily(
            "hearth_split_advised", "1 where separate prefill and decode engines are advised.", labels=("model",)
        )
        for model, split in decision.split.items():
            cost.add_metric((model, "colocated"), split.colocated_per_hour)
            cost.add_metric((model, "split"), split.split_per_hour)
            advised.add_metric((model,), float(split.verdict == SplitVerdict.SPLIT))
        actions = GaugeMetricFamily(
            "hearth_proposed_actions",
            "Actions that are proposed beside the number of engines; nothing acts on them.",
            labels=("pool", "action"),
        )
        planned = () if self._controller.actions is None else self._controller.actions.planned
        for (pool, kind), count in Counter((one.action.pool, one.action.kind.value) for one in planned).items():
            actions.add_metric((pool, kind), count)
        yield from (share, cost, advised, actions)

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment. Where figures are held the gauges show the held count."""
        controller = self._controller
        desired = GaugeMetricFamily(
            "hearth_desired_engines", "Engines that the pool should have, guard rails applied.", labels=LABELS
        )
        needed = GaugeMetricFamily(
            "hearth_needed_engines", "Engines that the load needs, before guard rails and minimum stays.", labels=LABELS
        )
        by_tier = GaugeMetricFamily(
            "hearth_desired_tier_engines", "Part of the desired engines that a tier needs.", labels=(*LABELS, "tier")
        )
        known = GaugeMetricFamily(
            "hearth_desired_engines_known",
            "1 where the figure may be acted on; 0 while figures are missing or stale and the count is held.",
            labels=("model",),
        )
        series = 0
        for each in controller.decision.pools:
            key = (each.model, each.pool, each.role)
            desired.add_metric(key, each.engines)
            needed.add_metric(key, each.unbounded)
            for tier, engines in each.tiers.items():
                if tier and series < MAX_TIER_SERIES:
                    series += 1
                    by_tier.add_metric((*key, tier), engines)
        is_current = controller.is_current
        for model in sorted({each.model for each in controller.decision.pools}):
            known.add_metric((model,), float(is_current and model not in controller.decision.unknown))
        yield from (desired, needed, by_tier, known)
        yield from self._advice()
        yield GaugeMetricFamily(
            "hearth_supply_missing_gateways", "Gateways whose figures are missing.", len(controller.missing())
        )
        if self._scaler is not None:
            calls = CounterMetricFamily(
                "hearth_external_scaler_calls", "Calls of KEDA's external scaler.", labels=("status",)
            )
            for status, count in self._scaler.calls.by_status.items():
                calls.add_metric((STATUS_NAMES.get(status, str(status)),), count)
            yield calls
            yield GaugeMetricFamily(
                "hearth_external_scaler_streams", "Open StreamIsActive calls.", self._scaler.open_watches
            )
