"""What findings change: which pods are drained for them, and what constrained and plain requests cost on which pods.

The worker that diagnoses computes it; it is applied by all workers of the host.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from diagnosis.distribution import Distribution
from diagnosis.facts import FleetFacts, PodObservation
from diagnosis.finding import Diagnosis
from gateway.diagnosis.draining import FindingDrains
from gateway.runtime.event_log import LogFunction

CONSTRAINED_RECIPE = "constrained_on_speculating"

PRICE_HALF_LIFE_S = 600.0
"""Half-life of a price after its finding: the finding is cleared because the requests went elsewhere."""

MIN_PRICE_S = 0.000_1
"""Seconds a token below which a price is dropped."""

MAX_PRICE_S = 0.1
"""Seconds a token: the times of requests also depend on how fast their clients read."""

PLAIN_SHARE = 0.2
"""Weight of the last look in a price of plain requests: single windows are noisy."""

MIN_PLAIN = 5.0
"""Plain requests of a window below which their time per token is not compared."""

DEFAULT_EXCESS_SHARE = 0.3
"""Part of a pod's own time per token that is taken for its excess where no other pod shows what it would be."""


@dataclass(frozen=True, slots=True)
class FindingEffects:
    """What is active now."""

    held: frozenset[str] = frozenset()
    """Pods that are drained for their findings."""
    constrained_excess_s: Mapping[str, float] = field(default_factory=dict)
    """Extra seconds a token of constrained requests, by URL of the pod; the next: of plain ones, on the pods beside."""
    plain_excess_s: Mapping[str, float] = field(default_factory=dict)


NO_EFFECTS = FindingEffects()

LEASE_S = 60.0
"""How long effects are active without being published again: they end with the diagnosis that they come from."""

RENEW_S = 15.0
"""Interval at which effects that last are published again."""


class EffectsPublisher:
    """One per gateway. `publish` applies effects in all workers: where they have changed, and to renew them."""

    def __init__(
        self,
        drains: FindingDrains | None,
        publish: Callable[[FindingEffects], object],
        clock: Callable[[], float],
    ) -> None:
        """`drains`: None where no pod may be drained for a finding. `clock` returns seconds of loop time."""
        self._drains = drains
        self._publish = publish
        self._clock = clock
        self._prices = DecodePrices()
        self._shown_prices: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})
        self._published = NO_EFFECTS
        self._published_s = clock()
        if drains is not None:
            drains.on_change = self.refresh

    def apply(self, facts: FleetFacts, diagnosis: Diagnosis) -> None:
        """Publish what follows from a look."""
        if self._drains is not None:
            self._drains.update(facts, diagnosis)
        self._shown_prices = self._prices.update(facts, diagnosis)
        is_due = self._published != NO_EFFECTS and self._clock() - self._published_s >= RENEW_S
        self.refresh(renews=is_due)

    def refresh(self, *, renews: bool = False) -> None:
        """Publish what is drained now, with the prices of the last look, where it has changed or to renew it."""
        held = frozenset[str]() if self._drains is None else self._drains.held
        effects = FindingEffects(held, *self._shown_prices)
        if renews or effects != self._published:
            self._published, self._published_s = effects, self._clock()
            self._publish(effects)


class EffectsLease:
    """One per worker: activates effects, and ends those that are not published again within `LEASE_S`."""

    def __init__(
        self,
        put_in_force: Callable[[FindingEffects], object],
        call_later: Callable[[float, Callable[[], object]], TimerHandle],
        log_event: LogFunction,
    ) -> None:
        self._put_in_force = put_in_force
        self._call_later = call_later
        self._log_event = log_event
        self._end: TimerHandle | None = None

    def apply(self, effects: FindingEffects) -> None:
        """Activate exactly these effects, and end all others."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if effects != NO_EFFECTS:  # Before: they end also where only a part of them could be activated.
            self._end = self._call_later(LEASE_S, self._expire)
        self._put_in_force(effects)

    def _expire(self) -> None:
        self._end = None
        self._log_event("warning", "finding_effects_expired")
        self._put_in_force(NO_EFFECTS)


class DecodePrices:
    """Extra seconds a token, by pod: of constrained requests where a finding names the pod, and of plain ones on the
    other pods of its pool, where they lack its speculation. So each kind leaves room where the other is fast.

    A price of constrained requests outlives its finding and fades; those of plain ones are measured while it lasts.
    """

    def __init__(self) -> None:
        self._prices: dict[str, float] = {}
        self._plain: dict[str, float] = {}
        self._at_s: float | None = None

    def update(self, facts: FleetFacts, diagnosis: Diagnosis) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the prices of constrained and of plain requests after a look."""
        constrained = self._constrained(facts, diagnosis)
        self._plain = self._measured_plain(facts) if self._prices else {}
        return constrained, {url: float(f"{price:.1g}") for url, price in self._plain.items()}

    def _measured_plain(self, facts: FleetFacts) -> dict[str, float]:
        found: dict[str, float] = {}
        fast: dict[str, list[float]] = {}
        for pod in facts.pods:
            if pod.address in self._prices and (gap := _plain_gap(pod)) is not None:
                fast.setdefault(pod.pool, []).append(gap)
        for pod in facts.pods:
            if pod.address in self._prices or pod.pool not in fast:
                continue
            gap, before = _plain_gap(pod), self._plain.get(pod.address)
            if gap is not None:
                excess = min(MAX_PRICE_S, max(0.0, gap - fmean(fast[pod.pool])))
                before = excess if before is None else before + PLAIN_SHARE * (excess - before)
            if before is not None and before >= MIN_PRICE_S:
                found[pod.address] = before
        return found

    def _constrained(self, facts: FleetFacts, diagnosis: Diagnosis) -> Mapping[str, float]:
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


def _plain_gap(pod: PodObservation) -> float | None:
    """Return the seconds a token of a pod's plain requests; None where there are few."""
    view = pod.requests
    if view is None or view.token_gap is None:
        return None
    constrained = view.constrained_token_gap
    count = view.token_gap.count - (0.0 if constrained is None else constrained.count)
    total = view.token_gap.total - (0.0 if constrained is None else constrained.total)
    return total / count if count >= MIN_PLAIN else None


def _mean(held: Distribution | None) -> float | None:
    return None if held is None else held.mean
