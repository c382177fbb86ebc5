"""Prometheus metrics of cascades: which model answers, what is escalated, what that costs and what it saves.

Cascades are few by configuration; tenants without a label value of their own are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cascade.record import ESCALATED, KEPT
from gateway.cascades.cascades import Cascades
from gateway.cascades.shadow_sampling import GuaranteeStatus
from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import Family, Histogram, TenantLabels, cumulative_buckets

HELD_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)

Key = tuple[str, ...]


class CascadeCounters:
    """Counters of requests to cascades, updated by each outcome."""

    def __init__(self, tenants: TenantLabels) -> None:
        self._tenants = tenants
        self.answers: Counter[Key] = Counter()
        self.judged: Counter[Key] = Counter()
        self.cost: dict[Key, float] = {}
        """By cascade, model and tenant."""
        self.wasted_cost: dict[Key, float] = {}
        self.wasted_tokens: Counter[Key] = Counter()
        self.always_top: dict[Key, float] = {}
        self.always_first: dict[Key, float] = {}
        self.escalated: Counter[Key] = Counter()
        """By cascade and tenant."""
        self.requests: Counter[Key] = Counter()
        self.held_s: dict[str, Histogram] = {}

    def on_outcome(self, outcome: Outcome) -> None:
        result = outcome.cascade
        if result is None:
            return
        cascade, tenant, answered = result.cascade, self._tenants.of(outcome.tenant), result.answering_step
        self.requests[cascade, tenant] += 1
        self.escalated[cascade, tenant] += result.is_escalated
        for step in result.steps:
            _add(self.cost, (cascade, step.model, tenant), step.cost)
            if step.result in (KEPT, ESCALATED):
                self.judged[cascade, step.model, step.result, step.reason] += 1
            if step is not answered:
                _add(self.wasted_cost, (cascade, step.model), step.cost)
                self.wasted_tokens[cascade, step.model] += step.output_tokens
        _add(self.always_top, (cascade,), result.cost_always_largest)
        _add(self.always_first, (cascade,), result.cost_always_first)
        if answered is not None:
            self.answers[cascade, answered.model, result.bucket] += 1
            if answered.result == KEPT and outcome.stream:
                self.held_s.setdefault(cascade, Histogram(HELD_BUCKETS)).observe(answered.holdback_s)


def show_usage(counters: CascadeCounters, cascade: str) -> dict[str, Any]:
    """Return what a cascade has done since the start: answers by model, and costs in the currency of the prices."""
    answers: Counter[str] = Counter()
    for (name, model, _), count in counters.answers.items():
        if name == cascade:
            answers[model] += count
    key = (cascade,)
    return {
        "requests": _sum_of(counters.requests, cascade),
        "escalated_requests": _sum_of(counters.escalated, cascade),
        "answers": answers,
        "cost": _sum_of(counters.cost, cascade),
        "wasted_cost": _sum_of(counters.wasted_cost, cascade),
        "cost_always_largest": counters.always_top.get(key, 0.0),
        "cost_always_first": counters.always_first.get(key, 0.0),
    }


def _sum_of(counts: Mapping[Key, float], cascade: str) -> float:
    return sum(count for key, count in counts.items() if key[0] == cascade)


class CascadeCollector(Collector):
    """Metric families of the counters, and of the quality guarantees."""

    def __init__(
        self,
        tallies: CascadeCounters,
        cascades: Cascades,
    ) -> None:
        self._tallies = tallies
        self._cascades = cascades

    def collect(self) -> Iterator[Family]:
        tallies = self._tallies
        counters: tuple[tuple[str, str, Key, Mapping[Key, float]], ...] = (
            ("answers", "Answers that clients received.", ("cascade", "model_name", "bucket"),
             tallies.answers),
            ("requests", "Requests to cascades.", ("cascade", "tenant"), tallies.requests),
            ("escalated_requests", "Requests of which an answer was discarded.", ("cascade", "tenant"),
             tallies.escalated),
            ("judged", "Answers judged, by verdict.", ("cascade", "model_name", "result", "reason"),
             tallies.judged),
            ("cost", "Cost in the currency of the prices, discarded answers included.",
             ("cascade", "model_name", "tenant"),
             tallies.cost),
            ("wasted_cost", "Cost of discarded answers.", ("cascade", "model_name"), tallies.wasted_cost),
            ("wasted_tokens", "Output tokens of discarded answers.", ("cascade", "model_name"), tallies.wasted_tokens),
            ("cost_always_top", "Cost of the same answers if the largest model had given all.", ("cascade",),
             tallies.always_top),
            ("cost_always_first", "Cost of the same answers if the smallest model had given all.", ("cascade",),
             tallies.always_first),
        )  # fmt: skip
        for name, words, labels, held in counters:
            family = CounterMetricFamily(f"hearth_cascade_{name}", words, labels=labels)
            for key, value in held.items():
                family.add_metric(key, value)
            yield family
        yield self._held()
        yield from self._guarantees()

    def _held(self) -> Family:
        family = HistogramMetricFamily(
            "hearth_cascade_holdback_seconds", "How long accepted streams were held back.", labels=("cascade",)
        )
        for cascade, histogram in self._tallies.held_s.items():
            family.add_metric((cascade,), cumulative_buckets(histogram), histogram.total)
        return family

    def _guarantees(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[GuaranteeStatus], float]], ...] = (
            ("guarantee_active", "1 while a quality guarantee holds.", lambda known: float(known.is_promised)),
            (
                "guarantee_max_loss_ratio",
                "Bound of the guarantee: quality that may be lost, 0 to 1.",
                lambda known: known.max_loss,
            ),
            ("guarantee_examples", "Examples that the guarantee is based on.", lambda known: known.examples),
            (
                "drift_alarm",
                "1 while the guarantee is withdrawn because shadow samples contradict it.",
                lambda known: float(known.has_drifted),
            ),
            (
                "drift_suspected",
                "1 while shadow samples make a loss of quality likely.",
                lambda known: float(known.is_suspected),
            ),
            ("shadow_samples", "Shadow samples compared.", lambda known: known.shadow_samples),
            ("shadow_agreement_ratio", "Share of shadow samples whose answers agreed.", lambda known: known.agreement),
            ("shadow_cost", "Cost of shadow samples.", lambda known: known.shadow_cost),
        )
        for name, words, value_of in shown:
            family = GaugeMetricFamily(f"hearth_cascade_{name}", words, labels=("cascade",))
            for cascade in self._cascades.by_name:
                if (known := self._cascades.guarantee_status(cascade)) is not None:
                    family.add_metric((cascade,), value_of(known))
            yield family
        yield from self._models()

    def _models(self) -> Iterator[Family]:
        frozen = GaugeMetricFamily(
            "hearth_cascade_model_frozen",
            "1 while no answer of the model is accepted, so that few requests try it.",
            labels=("cascade", "model_name"),
        )
        raised = GaugeMetricFamily(
            "hearth_cascade_threshold_raised_steps",
            "Steps by which shadow samples have raised the thresholds of a model; at 10 the guarantee is withdrawn.",
            labels=("cascade", "model_name"),
        )
        for name, cascade in self._cascades.by_name.items():
            if (known := self._cascades.guarantee_status(name)) is None:
                continue
            for model, is_frozen, steps in zip(cascade.models, known.frozen, known.raised, strict=False):
                frozen.add_metric((name, model.name), float(is_frozen))
                raised.add_metric((name, model.name), steps)
        yield frozen
        yield raised


def _add(held: dict[Key, float], key: Key, amount: float) -> None:
    held[key] = held.get(key, 0.0) + amount
