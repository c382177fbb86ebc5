"""Runs a canary: compares its requests, takes part in the verdict that all gateways share, and has the router follow.

A gateway keeps what it has compared until it is part of the shared state. Where that state cannot be reached, the last
verdict holds; before it was read once, the canary serves nothing. Decides nothing itself: `routing/canary/` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.canary.state_store import CanaryStore, StateUnavailable
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import restarted
from gateway.runtime.metric_families import Family
from routing.canary.change import OptionChange, StartedServer, change_fault, lowered_precision, option_changes
from routing.canary.comparison import PairedComparisons, ServedAttempt
from routing.canary.evidence import NO_EVIDENCE, group_of
from routing.canary.rollout import CanaryReason, CanaryUse, Rollout
from routing.canary.verdict import (
    FIXES,
    JUDGED_BY,
    NO_STATE,
    REASON_TEXTS,
    CanaryTerms,
    Trial,
    TrialStep,
    Verdict,
    VerdictReason,
    advance,
    is_rejected,
    judged_by,
    merged,
    summaries,
)
from routing.decision.placement import AttemptReceipt
from routing.eligible import PairingFallback
from routing.facts import Role
from routing.fleet import Fleet
from routing.pairing.partners import decoding_pods, unpaired
from routing.pods import Pod, PodState

LOOK_S = 1.0

RENEW_S = 10.0
"""After which a gateway takes part again, though it has compared nothing."""

BROKEN = frozenset(end.value for end in AttemptStatus if end.is_pod_failure)
"""Ends of attempts that are their pod's fault."""

UNPAIRED = frozenset({None, PairingFallback.NO_PREFILL_POD, PairingFallback.NO_DECODE_POD})
"""Attempts of which no pair has failed."""

REJECTED = frozenset(
    {
        *(VerdictReason.ANOTHER_CANARY, VerdictReason.MANY_OPTIONS, VerdictReason.OTHER_OPTION),
        *(VerdictReason.NO_OPTION, VerdictReason.OPTIONS_UNKNOWN, VerdictReason.NO_PARTNER),
    }
)
"""Reasons for which a canary serves nothing until something is changed."""

INTERNAL_TIER = "shadow"
"""Requests of the gateway itself, at the lowest priority: what they take says nothing."""


class CanaryController(Collector):
    """One per gateway process with a canary."""

    def __init__(
        self,
        rollout: Rollout,
        fleet: Fleet,
        store: CanaryStore,
        *,
        servers: Callable[[], Mapping[str, StartedServer]],
        log_event: LogFunction,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        has_tenants: Callable[[], bool] = lambda: False,
        logs_verdicts: bool = True,
    ) -> None:
        """`servers` returns how pods were started, by URL; `has_tenants`, whether there is more than one, so that no
        one of them may decide alone; `logs_verdicts`: of several workers, one logs.
        """
        self.rollout = rollout
        self.comparisons = PairedComparisons()
        self.state = NO_STATE
        """The shared state as last read."""
        self.reason = VerdictReason.STATE_UNREAD
        self.changes: tuple[OptionChange, ...] = ()
        """Options that its pods change."""
        self._fleet = fleet
        self._store = store
        self._servers = servers
        self._log_event = log_event
        self._clock = clock
        self._wall_clock = wall_clock
        self._has_tenants = has_tenants
        self._logs_verdicts = logs_verdicts
        self._has_read = False
        self._renewed_s = float("-inf")
        self._problem = ""
        self._logged: set[VerdictReason] = set()
        """Reasons logged since it serves its share: evidence may go back and forth between two."""
        self._has_logged_limits = False

    @property
    def terms(self) -> CanaryTerms:
        """The terms by which it is judged: those with which its trial began."""
        return judged_by(self.rollout.terms, self.trial)

    @property
    def trial(self) -> Trial | None:
        """The canary's trial; None where it has not begun."""
        return self.state.of(self.rollout.terms.identity)

    @property
    def verdict(self) -> Verdict:
        """The verdict of now."""
        return Verdict.HOLD if self.trial is None else self.trial.verdict

    @property
    def wants_quality(self) -> bool:
        """Whether answers have to be compared, and the canary serves its share."""
        trial = self.trial
        return self.rollout.use is CanaryUse.SHARE and trial is not None and trial.needs_quality

    @restarted("canary")
    async def run(self) -> None:
        """Look every second, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at the pods on trial, take part in the shared state, and follow the verdict."""
        terms, before = self.rollout.terms, (self.reason, self.rollout.use)
        fault = self._fault(self.rollout.members(self._fleet.pods))
        needs_quality = terms.lower_precision
        if needs_quality is None:
            needs_quality = bool(lowered_precision(self.changes))
        await self._take_part(TrialStep(NO_EVIDENCE, fault is None, needs_quality))
        self.rollout.use, self.reason = self._follow(fault)
        is_awaited = self.reason is VerdictReason.NO_POD and before[1] is CanaryUse.NOTHING
        if self.rollout.use is not before[1]:
            self._logged.clear()
        if before != (self.reason, self.rollout.use) and self._logs_verdicts and not is_awaited:
            self._log_change()
        if self._logs_verdicts and self.verdict is Verdict.HOLD and not self._has_logged_limits:
            self._log_kept_limits()

    async def _take_part(self, step: TrialStep) -> None:
        """Add what was compared to the shared state, and read it; now and then also without news."""
        terms, known, now_s = self.rollout.terms, self.state, self._wall_clock()
        trial, evidence = self.trial, self.comparisons.take()
        is_new = trial is None or (step.needs_quality and not trial.needs_quality)
        if self._has_read and not is_new and evidence == NO_EVIDENCE and self._clock() - self._renewed_s < RENEW_S:
            return
        step, is_kept = TrialStep(evidence, step.may_start, step.needs_quality), False
        try:
            self.state = await self._store.update(
                lambda stored: advance(merged(stored or NO_STATE, known), terms, step, now_s)
            )
            is_kept = True
        except StateUnavailable as error:
            if self._problem != str(error):
                self._log_event("warning", "canary_state_unavailable", canary=terms.name, error=str(error))
            self._problem = str(error)
            return
        finally:
            if not is_kept:
                self.comparisons.give_back(evidence)
        self._has_read, self._renewed_s, self._problem = True, self._clock(), ""

    def _follow(self, fault: VerdictReason | None) -> tuple[CanaryUse, VerdictReason]:
        """Return what the canary serves by the state that was read, and why."""
        trial = self.trial
        if not self._has_read:
            return CanaryUse.NOTHING, VerdictReason.STATE_UNREAD
        if trial is not None and trial.verdict is not Verdict.HOLD:
            return CanaryUse.ALL if trial.verdict is Verdict.PROMOTE else CanaryUse.NOTHING, trial.reason
        if is_rejected(self.state, self.rollout.terms, self._wall_clock()):
            return CanaryUse.NOTHING, VerdictReason.ANOTHER_CANARY
        if fault is not None or trial is None:
            return CanaryUse.NOTHING, fault or VerdictReason.NO_POD
        return CanaryUse.SHARE, trial.reason

    def _fault(self, members: Sequence[Pod]) -> VerdictReason | None:
        """Return why the pods may not be on trial now; None where they may. Notes the options that they change."""
        ready = [pod for pod in members if pod.state is PodState.READY]
        if not ready:
            return VerdictReason.NO_POD
        servers, urls = self._servers(), {pod.url for pod in members}
        roles, models = _roles(ready), {model for pod in ready for model in pod.models}
        standing = [pod for pod in self._fleet.pods if pod.url not in urls and models & pod.models]
        alike = [pod for pod in standing if _roles((pod,)) == roles] or standing
        before, after = _started(alike, servers), _started(ready, servers)
        self.changes = option_changes(before, after)
        if (fault := change_fault(self.rollout.terms.kind, before, after)) is not None:
            return VerdictReason(fault.value)
        if roles == {Role.PREFILL} and not {pod.url for pod in ready} - unpaired(self._fleet).keys():
            return VerdictReason.NO_PARTNER
        if roles == {Role.DECODE} and not {pod.url for pod in ready} & decoding_pods(self._fleet):
            return VerdictReason.NO_PARTNER
        return None

    def on_outcome(self, outcome: Outcome) -> None:
        """Compare every attempt of a request."""
        if outcome.tier == INTERNAL_TIER or not self._compares:
            return
        by_group = self._has_tenants() and not self.rollout.terms.one_tenant_decides
        group = group_of(outcome.tenant or "") if by_group else None
        for attempt in outcome.attempts:
            seen, is_on_trial = _served(attempt, outcome, group), self._is_on_trial(attempt)
            if seen is None or is_on_trial is None:
                continue
            if is_on_trial:
                self.comparisons.observe_canary(seen, self._clock())
            else:
                self.comparisons.observe_standing(seen, self._clock())

    @property
    def _compares(self) -> bool:
        """Whether requests are compared: also of pods that have vanished, for they may have failed their last ones."""
        is_without_pods = self.reason is VerdictReason.NO_POD and self.trial is not None
        return self.rollout.use is CanaryUse.SHARE or is_without_pods

    def _is_on_trial(self, attempt: AttemptReceipt) -> bool | None:
        """Return whether pods on trial had a part in an attempt; None where pods have vanished and nothing tells."""
        engines = [name for name in (attempt.engine, attempt.prefill_engine) if name is not None]
        pods = [self._fleet.pod(name.partition("#")[0]) for name in engines]
        known = [pod for pod in pods if pod is not None]
        if len(known) == len(pods):
            return bool(self.rollout.members(known))
        if not attempt.canary:
            return None
        return attempt.canary in (CanaryReason.SHARE, CanaryReason.NO_STANDING_POD)

    def _log_kept_limits(self) -> None:
        """Report once if the configured limits are not those with which the trial began."""
        kept, terms = self.terms, self.rollout.terms
        limits = [
            f"{name}: {getattr(kept, name):g}" for name in JUDGED_BY if getattr(kept, name) != getattr(terms, name)
        ]
        if limits:
            self._has_logged_limits = True
            self._log_event("warning", "canary_limits_kept", canary=terms.name, limits=limits)

    def _log_change(self) -> None:
        terms, trial, reason = self.rollout.terms, self.trial, self.reason
        cause, fix = REASON_TEXTS[reason], FIXES.get(reason, "")
        evidence = [] if trial is None else [str(each) for each in summaries(self.terms, trial.evidence)]
        options = [str(change) for change in self.changes]
        if self.verdict is not Verdict.HOLD:
            is_bad = self.verdict is Verdict.REVERT
            self._log_event(
                "error" if is_bad else "info",
                "canary_reverted" if is_bad else "canary_promoted",
                canary=terms.name,
                reason=reason,
                cause=cause,
                evidence=evidence,
                options=options,
            )
        elif reason in REJECTED:
            self._log_event(
                "error", "canary_rejected", canary=terms.name, reason=reason, cause=cause, options=options, fix=fix
            )
        elif reason in self._logged:
            return
        elif reason is VerdictReason.COLLECTING:
            self._log_event(
                "info",
                "canary_started",
                canary=terms.name,
                traffic_share=terms.traffic_share,
                evidence=evidence,
                options=options,
            )
        else:
            level = "warning" if reason in (VerdictReason.QUALITY_MISSING, VerdictReason.ONE_TENANT) else "info"
            self._log_event(
                level, "canary_held", canary=terms.name, reason=reason, cause=cause, evidence=evidence, fix=fix
            )
        if self.rollout.use is CanaryUse.SHARE:
            self._logged.add(reason)

    def show(self) -> dict[str, Any]:
        """Return the canary as JSON values for the admin port."""
        terms, trial = self.rollout.terms, self.trial
        pods = self.rollout.members(self._fleet.pods)
        evidence = NO_EVIDENCE if trial is None else trial.evidence
        return {
            "name": terms.name,
            "verdict": self.verdict.value,
            "reason": self.reason.value,
            "cause": REASON_TEXTS[self.reason],
            "fix": FIXES.get(self.reason),
            "serves": self.rollout.use.value,
            "traffic_share": terms.traffic_share,
            "pods": sorted(pod.url for pod in pods),
            "options": [str(change) for change in self.changes],
            "needs_quality": trial is not None and trial.needs_quality,
            "active_s": 0.0 if trial is None else round(trial.active_s, 3),
            "requests": {
                name: {"offered": offered, "taken": taken}
                for name, (offered, taken) in (
                    ("sessionless", self.rollout.served(sessions=False)),
                    ("sessions", self.rollout.served(sessions=True)),
                )
            },
            "comparisons": [
                {
                    "kind": each.kind,
                    "comparisons": each.comparisons,
                    "lower": each.interval[0],
                    "upper": each.interval[1],
                    "limit": each.limit,
                    "e_value": round(each.e_value, 3),
                }
                for each in summaries(self.terms, evidence)
            ],
            "state_error": self._problem or None,
            "ended": [
                {"canary": identity.partition("|")[0], "verdict": ended.verdict.value, "reason": ended.reason.value}
                for identity, ended in self.state.ended.items()
            ],
        }

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        name = self.rollout.terms.name
        verdict = GaugeMetricFamily("hearth_canary_verdict", "1 for the verdict of now.", labels=("canary", "verdict"))
        for each in Verdict:
            verdict.add_metric((name, each.value), float(each is self.verdict))
        bound = GaugeMetricFamily(
            "hearth_canary_interval",
            "Bound of the canary's median time by that of the standing pods, or of a difference of shares.",
            labels=("canary", "kind", "bound"),
        )
        worse = GaugeMetricFamily(
            "hearth_canary_e_value",
            "Evidence that it is worse, without any one group of tenants; reverted at 4 / false_revert_rate.",
            labels=("canary", "kind"),
        )
        rounds = CounterMetricFamily("hearth_canary_comparisons", "Comparisons.", labels=("canary", "kind"))
        evidence = NO_EVIDENCE if self.trial is None else self.trial.evidence
        for summary in summaries(self.terms, evidence):
            for side, value in zip(("lower", "upper"), summary.interval, strict=True):
                if value is not None:
                    bound.add_metric((name, summary.kind, side), value)
            worse.add_metric((name, summary.kind), summary.e_value)
            rounds.add_metric((name, summary.kind), summary.comparisons)
        counts = [self.rollout.served(sessions=sessions) for sessions in (False, True)]
        offered = CounterMetricFamily(
            "hearth_canary_offered_requests", "Requests that could go either way.", labels=("canary",)
        )
        taken = CounterMetricFamily("hearth_canary_requests", "Those of them that it served.", labels=("canary",))
        offered.add_metric((name,), sum(count for count, _ in counts))
        taken.add_metric((name,), sum(count for _, count in counts))
        yield from (verdict, bound, worse, rounds, offered, taken)


def _served(attempt: AttemptReceipt, outcome: Outcome, group: int | None) -> ServedAttempt | None:
    """Return what is compared of an attempt; None where its client or the gateway ended it before its first token."""
    failed = attempt.result in BROKEN or attempt.fallback_reason not in UNPAIRED
    if not failed and attempt.result != AttemptStatus.OK and attempt.actual_ttft_s is None:
        return None
    cached = attempt.actual_cached_input_tokens or attempt.predicted_cached_input_tokens
    tokens = outcome.usage.completion_tokens if outcome.usage is not None else 0
    is_last = attempt is outcome.attempts[-1]
    has_pace = is_last and not failed and outcome.decode_s is not None and tokens > 1
    return ServedAttempt(
        model=attempt.model,
        is_pair=attempt.prefill_engine is not None,
        prompt_tokens=attempt.predicted_input_tokens,
        uncached_tokens=max(0, attempt.predicted_input_tokens - cached),
        group=group,
        failed=failed,
        ttft_s=None if failed else attempt.actual_ttft_s,
        output_tokens=tokens,
        tpot_s=outcome.decode_s / (tokens - 1) if has_pace and outcome.decode_s is not None else None,
    )


def _started(pods: Sequence[Pod], servers: Mapping[str, StartedServer]) -> list[StartedServer]:
    return [servers.get(pod.url, StartedServer({}, is_complete=False)) for pod in pods]


def _roles(pods: Sequence[Pod]) -> set[Role]:
    return {engine.role for pod in pods for engine in pod.engines}
