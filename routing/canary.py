"""Lets a new pool or revision serve a share of requests, and says when it is worse than what stands, or as good.

Each of its first-token and token times is set against one that the standing pods had just before on a request of like
size: was it longer, by more than the gate allows? Were it not, that would happen in at most half of the comparisons,
and a bet on it would not grow. The bettor's wealth may be looked at after every comparison: it ever reaches
1 / error with a chance of at most `error` (Ville's inequality; betting as in Waudby-Smith and Ramdas). Decides only:
which pods were chosen, which answered and how fast are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, log2

from xxhash import xxh3_64_intdigest

from routing.fleet import Fleet
from routing.request import Request

BETS = (0.1, 0.2, 0.4, 0.8)
"""Shares of its wealth that a bettor stakes: small ones find small differences, large ones large differences soon."""

MIN_WEALTH = 1e-300

STALE_S = 300.0
"""What the standing pods took longer ago than this is compared with nothing."""


class CanaryStage(StrEnum):
    """How far a canary has come."""

    WAITING = "waiting"
    """Another canary is on trial; it serves no requests."""
    ON_TRIAL = "on_trial"
    ACCEPTED = "accepted"
    ROLLED_BACK = "rolled_back"
    """It serves no requests until it is configured again."""


class TrialEndReason(StrEnum):
    """Why a trial ended."""

    EVIDENCE = "evidence"
    """Its times, or its failures, decided."""
    MAX_DURATION = "max_duration"
    """Undecided for as long as a trial may take: nothing has shown that it is as good as what stands."""
    SPLIT = "split"
    """Its pods prefill or decode for others. Only the engine that answers is compared, so such a trial says nothing of
    a prefill pod, and a decode pod on trial could not pair with the prefill pods that stand.
    """


@dataclass(frozen=True, slots=True)
class CanaryTerms:
    """`pool` or `revision` names its pods; both, those that are both. Ratios are of the standing pods' times."""

    name: str
    pool: str | None = None
    revision: str | None = None
    traffic_share: float = 0.05
    """Of the requests that it could serve."""
    max_ttft_ratio: float = 1.1
    max_tpot_ratio: float = 1.1
    """A ratio up to this is not a regression."""
    false_rollback_rate: float = 0.05
    """The chance that a canary that is not worse than the gates is rolled back, over its whole trial."""
    min_comparisons: int = 200
    """Comparisons before it is accepted; it is rolled back as soon as the evidence is there."""
    max_duration_s: float = 86_400.0
    """A trial that is undecided after this time is rolled back."""

    def __post_init__(self) -> None:
        if not self.pool and not self.revision:
            raise ValueError("pool: name the pool or the revision on trial")
        if not 0 < self.traffic_share < 1 or not 0 < self.false_rollback_rate < 1:
            raise ValueError("traffic_share, false_rollback_rate: must be between 0 and 1")
        if min(self.max_ttft_ratio, self.max_tpot_ratio) < 1 or self.min_comparisons < 1:
            raise ValueError("max_ttft_ratio, max_tpot_ratio, min_comparisons: must be >= 1")
        if not 0 < self.max_duration_s < inf:
            raise ValueError("max_duration_s: must be above 0")


class SequentialTest:
    """A bet, repeated, that something happens more often than every other time. Fair where it does not."""

    __slots__ = ("_wealths", "max_wealth", "rounds")

    def __init__(self) -> None:
        self._wealths = [1.0] * len(BETS)
        self.max_wealth = 1.0
        """The most that the bettor ever had, having begun with 1."""
        self.rounds = 0

    def observe(self, *, won: bool) -> None:
        """One more round."""
        self.rounds += 1
        sign = 1.0 if won else -1.0
        self._wealths = [
            max(wealth * (1.0 + bet * sign), MIN_WEALTH) for wealth, bet in zip(self._wealths, BETS, strict=True)
        ]
        self.max_wealth = max(self.max_wealth, sum(self._wealths) / len(BETS))


@dataclass(slots=True)
class BaselineTime:
    """The last time that the standing pods took for one size of request; compared with once."""

    seconds: float
    at_s: float


class TimeComparison:
    """One kind of times, of the canary and of what stands, by the size of what took them."""

    def __init__(self, gate: float) -> None:
        self.gate = gate
        self.worse = SequentialTest()
        self.better = SequentialTest()
        self._baseline: dict[int, BaselineTime] = {}

    def observe_baseline(self, size: float, seconds: float, now_s: float) -> None:
        """Record one time of the baseline, in seconds, for a request of this size."""
        self._baseline[_bucket(size)] = BaselineTime(seconds, now_s)

    def observe_canary(self, size: float, seconds: float, now_s: float) -> None:
        """Record one time of the canary, in seconds, for a request of this size; infinite if it failed."""
        other = self._baseline.pop(_bucket(size), None)
        if other is None or now_s - other.at_s > STALE_S:
            return
        bound = self.gate * other.seconds
        self.worse.observe(won=seconds > bound)
        self.better.observe(won=seconds <= bound)


class Canary:
    """One on trial."""

    def __init__(self, terms: CanaryTerms) -> None:
        self.terms = terms
        self.stage = CanaryStage.WAITING
        self.end_reason: TrialEndReason | None = None
        """Of a trial that has ended."""
        self.started_s = 0.0
        self.ttft = TimeComparison(terms.max_ttft_ratio)
        self.tpot = TimeComparison(terms.max_tpot_ratio)

    def judge(self) -> CanaryStage:
        """What the evidence says now: one kind of times is enough to fail, acceptance wants both."""
        if self.stage is not CanaryStage.ON_TRIAL:
            return self.stage
        # Either test may err with half of the stated chance.
        bar = 2.0 / self.terms.false_rollback_rate
        if max(self.ttft.worse.max_wealth, self.tpot.worse.max_wealth) >= bar:
            self.end(CanaryStage.ROLLED_BACK, TrialEndReason.EVIDENCE)
        elif (
            min(self.ttft.better.max_wealth, self.tpot.better.max_wealth) >= bar
            and self.ttft.worse.rounds >= self.terms.min_comparisons
        ):
            self.end(CanaryStage.ACCEPTED, TrialEndReason.EVIDENCE)
        return self.stage

    def end(self, stage: CanaryStage, why: TrialEndReason) -> None:
        """End its trial, or have none."""
        self.stage, self.end_reason = stage, why

    def includes(self, pool: str | None, revision: str | None) -> bool:
        """Whether a pod of this pool and revision is on trial here."""
        terms = self.terms
        return (terms.pool is None or terms.pool == pool) and (terms.revision is None or terms.revision == revision)


PodRevisions = Mapping[str, tuple[str | None, str | None]]
"""Pool and revision of pods, by URL."""


class Rollout:
    """Canaries in the order given: one pool at a time."""

    def __init__(self, terms: Sequence[CanaryTerms]) -> None:
        self.canaries = tuple(Canary(each) for each in terms)

    @property
    def on_trial(self) -> Canary | None:
        """Whose turn it is."""
        return next((one for one in self.canaries if one.stage is CanaryStage.ON_TRIAL), None)

    def end_disaggregated(self, split: PodRevisions) -> list[Canary]:
        """Roll back those that have one of these pods, which prefill or decode for others; also those that wait for
        their turn. Returns them.
        """
        ended = [
            canary
            for canary in self.canaries
            if canary.stage in (CanaryStage.WAITING, CanaryStage.ON_TRIAL)
            and any(canary.includes(*marks) for marks in split.values())
        ]
        for canary in ended:
            canary.end(CanaryStage.ROLLED_BACK, TrialEndReason.SPLIT)
        return ended

    def expire(self, now_s: float) -> Canary | None:
        """Roll back the one on trial where it has been undecided for too long. Returns it."""
        canary = self.on_trial
        if canary is None or now_s - canary.started_s < canary.terms.max_duration_s:
            return None
        canary.end(CanaryStage.ROLLED_BACK, TrialEndReason.MAX_DURATION)
        return canary

    def start_next(self, pods: PodRevisions, now_s: float = 0.0) -> Canary | None:
        """Put the next one on trial that has a pod, where none is. Returns it."""
        if self.on_trial is not None:
            return None
        for canary in self.canaries:
            if canary.stage is CanaryStage.WAITING and any(canary.includes(*marks) for marks in pods.values()):
                canary.stage, canary.started_s = CanaryStage.ON_TRIAL, now_s
                return canary
        return None

    def eligible_pods(self, key: str, pods: PodRevisions) -> Collection[str]:
        """URLs of the pods that may serve the session or request `key`: stable while nothing changes.

        All of `pods` where none would be left.
        """
        baseline = [url for url, marks in pods.items() if self._of(marks) is None]
        canary = self.on_trial
        tried = [url for url, marks in pods.items() if canary is not None and self._of(marks) is canary]
        if (
            canary is not None
            and tried
            and (not baseline or _draw(canary.terms.name, key) < canary.terms.traffic_share)
        ):
            return tried
        return baseline or pods

    def observe(
        self,
        marks: tuple[str | None, str | None],
        cold_tokens: float,
        ttft_s: float | None,
        tpot_s: float | None,
        now_s: float,
    ) -> Canary | None:
        """One request has ended on a pod; `ttft_s` None where it failed there. Returns the canary that this decides."""
        canary = self.on_trial
        if canary is None:
            return None
        of = self._of(marks)
        if of is None and ttft_s is not None:
            canary.ttft.observe_baseline(cold_tokens, ttft_s, now_s)
            if tpot_s is not None:
                canary.tpot.observe_baseline(cold_tokens, tpot_s, now_s)
        elif of is canary:
            canary.ttft.observe_canary(cold_tokens, inf if ttft_s is None else ttft_s, now_s)
            if tpot_s is not None:
                canary.tpot.observe_canary(cold_tokens, tpot_s, now_s)
            return canary if canary.judge() is not CanaryStage.ON_TRIAL else None
        return None

    def _of(self, marks: tuple[str | None, str | None]) -> Canary | None:
        """The canary that a pod belongs to, while it is not accepted."""
        return next(
            (one for one in self.canaries if one.stage is not CanaryStage.ACCEPTED and one.includes(*marks)), None
        )


def excluded_pods(fleet: Fleet, rollout: Rollout, request: Request, avoid: frozenset[str]) -> frozenset[str]:
    """The pods that a canary's share leaves out for this request."""
    ready = [pod for pod in fleet.serving(request.model, request.regions) if pod.url not in avoid]
    marks = {pod.url: (pod.pool, pod.facts.revision) for pod in ready}
    meant = rollout.eligible_pods(request.session or request.id, marks)
    answers = any(engine.pod in meant for engine in fleet.eligible(request.model, request.regions).engines)
    return frozenset(marks).difference(meant) if answers else frozenset()


def _bucket(size: float) -> int:
    return int(log2(size + 1.0))


def _draw(name: str, key: str) -> float:
    return xxh3_64_intdigest(f"{name}\0{key}".encode()) / 2.0**64
