"""The rules by which KEDA and the HPA turn a metric into a count: 0 and 1 are KEDA's, 1 and above the HPA's.

As documented by Kubernetes and KEDA, with times that a test divides by a common factor. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One ScaledObject's settings, in seconds."""

    min_replicas: int = 0
    max_replicas: int = 10
    polling_s: float = 30.0
    cooldown_s: float = 300.0
    sync_s: float = 15.0
    """Of the HPA."""
    tolerance: float = 0.1
    up_pods: int = 4
    up_factor: float = 2.0
    up_period_s: float = 15.0
    """The larger of both within each period."""
    down_stabilization_s: float = 300.0
    failure_threshold: int = 3
    fallback_replicas: int | None = None
    """`behavior: currentReplicasIfHigher`: the count is at least this and what it was; None: without fallback."""

    def faster(self, factor: float) -> ScalingRules:
        """The same with all times divided."""
        return ScalingRules(
            self.min_replicas,
            self.max_replicas,
            self.polling_s / factor,
            self.cooldown_s / factor,
            self.sync_s / factor,
            self.tolerance,
            self.up_pods,
            self.up_factor,
            self.up_period_s / factor,
            self.down_stabilization_s / factor,
            self.failure_threshold,
            self.fallback_replicas,
        )


@dataclass(slots=True)
class Autoscaler:
    """KEDA and the HPA of one workload."""

    rules: ScalingRules
    replicas: int = 0
    failures: int = 0
    """In a row."""
    _active_s: float | None = None
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def activate(self, now_s: float) -> int:
        """KEDA: a trigger is active. A workload at zero gets its first replica."""
        self._active_s = now_s
        if self.replicas == 0 and self.rules.max_replicas:
            self.replicas = max(1, self.rules.min_replicas)
        return self.replicas

    def deactivate(self, now_s: float) -> int:
        """KEDA: no trigger is active. After the cool-down the workload goes to its minimum of zero."""
        since_s = self._active_s if self._active_s is not None else now_s - self.rules.cooldown_s
        if self.rules.min_replicas == 0 and self.replicas and now_s - since_s >= self.rules.cooldown_s:
            self.replicas = 0
            self._recommended.clear()
        return self.replicas

    def sync(self, values: Sequence[float | None], now_s: float, *, target: float = 1.0) -> int:
        """HPA: the metrics of all triggers (None: a failed call). Returns the replicas."""
        rules = self.rules
        self.failures = self.failures + 1 if any(value is None for value in values) else 0
        if self.replicas == 0:
            return 0
        proposals = [self._proposal(value, target) for value in values if value is not None]
        if any(value is None for value in values):
            if self.failures >= rules.failure_threshold and rules.fallback_replicas is not None:
                proposals.append(max(self.replicas, rules.fallback_replicas))
            # With a metric missing the HPA does not scale down.
            proposals.append(self.replicas)
        wanted = min(max(*proposals, rules.min_replicas, 1), rules.max_replicas)
        self._recommended = [each for each in self._recommended if now_s - each[0] < rules.down_stabilization_s]
        self._recommended.append((now_s, wanted))
        if wanted < self.replicas:
            wanted = min(self.replicas, max(each for _, each in self._recommended))
        elif wanted > self.replicas:
            self._changes = [each for each in self._changes if now_s - each[0] < rules.up_period_s]
            started = self.replicas - sum(added for _, added in self._changes)
            allowed = max(started + rules.up_pods, ceil(started * rules.up_factor))
            wanted = max(self.replicas, min(wanted, allowed))
            if wanted > self.replicas:
                self._changes.append((now_s, wanted - self.replicas))
        self.replicas = wanted
        return wanted

    def _proposal(self, value: float, target: float) -> int:
        """AverageValue: metric over target, unless it is within the tolerance of what is there."""
        ratio = value / (target * self.replicas)
        if abs(ratio - 1.0) <= self.rules.tolerance:
            return self.replicas
        return ceil(value / target)
