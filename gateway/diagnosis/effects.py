"""What findings change: which pods are drained for them, and what constrained requests cost on which pods.

The worker that diagnoses computes it; it is applied by all workers of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from diagnosis.distribution import Distribution
from diagnosis.facts import FleetFacts, PodObservation
from diagnosis.finding import Diagnosis
from gateway.diagnosis.draining import FindingDrains

CONSTRAINED_RECIPE = "constrained_on_speculating"

PRICE_HALF_LIFE_S = 600.0
"""Half-life of a price after its finding: the finding is cleared because the requests went elsewhere."""

MIN_PRICE_S = 0.000_1
"""Seconds a token below which a price is dropped."""

MAX_PRICE_S = 0.1
"""Seconds a token: the times of requests also depend on how fast their clients read."""

DEFAULT_EXCESS_SHARE = 0.3
"""Part of a pod's own time per token that is taken for its excess where no other pod shows what it would be."""


@dataclass(frozen=True, slots=True)
class FindingEffects:
    """What is in force now."""

    held: frozenset[str] = frozenset()
    """Pods that are drained for their findings."""
    constrained_excess_s: Mapping[str, float] = field(default_factory=dict)
    """Extra seconds a token of constrained requests, by URL of the pod."""


class EffectsPublisher:
    """One per gateway. `publish` applies effects in all workers; it is called where they have changed."""

    def __init__(self, drains: FindingDrains | None, publish: Callable[[FindingEffects], object]) -> None:
        """`drains`: None where no pod may be drained for a finding."""
        self._drains = drains
        self._publish = publish
        self._prices = ConstrainedPrices()
        self._published = FindingEffects()

    def apply(self, facts: FleetFacts, diagnosis: Diagnosis) -> None:
        """Publish what follows from a look."""
        held = frozenset[str]() if self._drains is None else self._drains.update(facts, diagnosis)
        effects = FindingEffects(held, self._prices.update(facts, diagnosis))
        if effects != self._published:
            self._published = effects
            self._publish(effects)


class ConstrainedPrices:
    """Extra seconds a token of constrained requests, by pod; a price outlives its finding and fades."""

    def __init__(self) -> None:
        self._prices: dict[str, float] = {}
        self._at_s: float | None = None

    def update(self, facts: FleetFacts, diagnosis: Diagnosis) -> Mapping[str, float]:
        """Return the prices after a look."""
        passed_s = 0.0 if self._at_s is None else max(0.0, facts.at_s - self._at_s)
        self._at_s = facts.at_s
        named = {url for finding in diagnosis.findings if finding.recipe == CONSTRAINED_RECIPE for url in finding.pods}
        if not named and not self._prices:
            return {}
        present = {pod.address: pod for pod in facts.pods}
        faded = {
            url: price * 0.5 ** (passed_s / PRICE_HALF_LIFE_S) for url, price in self._prices.items() if url in present
        }
        for url in named & present.keys():
            faded[url] = max(faded.get(url, 0.0), min(MAX_PRICE_S, _excess_s(present[url], facts, named)))
        self._prices = {url: price for url, price in faded.items() if price >= MIN_PRICE_S}
        # Rounded, so that fading alone is not published at every look.
        return {url: float(f"{price:.2g}") for url, price in self._prices.items()}


def _excess_s(pod: PodObservation, facts: FleetFacts, named: set[str]) -> float:
    """Return by how many seconds a token of constrained requests takes longer on a pod than on the best other one."""
    own = _constrained_gap(pod)
    if own is None:
        return 0.0
    others = [
        gap
        for other in facts.pods
        if other.pool == pod.pool and other.address not in named and (gap := _constrained_gap(other)) is not None
    ]
    return max(0.0, own - min(others)) if others else DEFAULT_EXCESS_SHARE * own


def _constrained_gap(pod: PodObservation) -> float | None:
    view = pod.requests
    return None if view is None else _mean(view.constrained_token_gap) or _mean(view.token_gap)


def _mean(held: Distribution | None) -> float | None:
    return None if held is None else held.mean
