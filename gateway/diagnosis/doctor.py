"""Diagnoses the fleet every few seconds, beside the request path; keeps findings, and logs what is raised and cleared.

One worker of a host does, because all of them see the same engines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diagnosis.diagnose import DiagnosisState, diagnose
from diagnosis.facts import FleetFacts
from diagnosis.finding import Diagnosis, Evidence, Finding, FirstAnswer, Question
from gateway.config.doctor import DoctorMode
from gateway.diagnosis.baseline_store import BaselineStore
from gateway.diagnosis.collector import LAG_INTERVAL_S, FactCollector
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import call_guarded, restarted

LOOK_INTERVAL_S = 5.0

KEPT_FACTS = 6
"""Facts of the last looks that a support bundle holds: enough for most findings to be raised from them alone, and
for all others with the time of their first evidence, which it also holds.
"""

MAX_LOGGED_PODS = 8
MAX_LOGGED_EVIDENCE = 4

NOT_LOOKED = Diagnosis(0.0, FirstAnswer(Question.UNKNOWN, "the first look has not ended yet"))

FindingsListener = Callable[[FleetFacts, Diagnosis], object]
"""Receives the facts and the result of each look."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look: its facts and what was found."""

    facts: FleetFacts
    diagnosis: Diagnosis


class Doctor:
    """One per gateway, in one worker of a host. Times are Unix times."""

    def __init__(
        self,
        collector: FactCollector,
        *,
        mode: DoctorMode,
        baselines: BaselineStore,
        log_event: LogFunction,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.mode = mode
        self.collector = collector
        self.looks: deque[Look] = deque(maxlen=KEPT_FACTS)
        self.listeners: list[FindingsListener] = []
        """Called after each look, in order; what one raises does not keep the others from it."""
        self.baselines = baselines
        self._log_event = log_event
        self._wall_clock = wall_clock
        self._clock = clock
        self._state = DiagnosisState()

    @property
    def diagnosis(self) -> Diagnosis:
        """The result of the last look."""
        return self.looks[-1].diagnosis if self.looks else NOT_LOOKED

    @restarted("doctor")
    async def run(self) -> None:
        """Look periodically until cancelled."""
        if not self.looks:
            await self.baselines.load()
        while True:
            due_s = self._clock() + LOOK_INTERVAL_S
            while (left_s := due_s - self._clock()) > 0:
                await self._measure_lag(min(LAG_INTERVAL_S, left_s))
            await self.look()

    async def _measure_lag(self, seconds: float) -> None:
        begun_s = self._clock()
        await asyncio.sleep(seconds)
        self.collector.note_lag(self._clock() - begun_s - seconds)

    async def look(self) -> None:
        """Collect facts and diagnose them once."""
        facts = await self.collector.collect()
        now_s = self._wall_clock()
        # In a thread: recipes over a thousand pods take longer than a stream may wait.
        found, self._state = await asyncio.to_thread(diagnose, facts, self.baselines.baseline, self._state, now_s)
        if not self.looks:
            self._log_event("info", "diagnosis_started", mode=self.mode.value, pods=len(facts.pods))
        before = self.diagnosis
        self.looks.append(Look(facts, found))
        self._log_changes(before.findings, found.findings)
        for notify in self.listeners:
            call_guarded("findings", notify, facts, found)
        await self.baselines.learn(facts, found)

    def findings_by_pod(self) -> dict[str, list[str]]:
        """Return the recipes of each pod's findings, by URL."""
        found: dict[str, list[str]] = {}
        for finding in self.diagnosis.findings:
            for pod in finding.pods:
                found.setdefault(pod, []).append(finding.recipe)
        return found

    def _log_changes(self, before: Iterable[Finding], now: Iterable[Finding]) -> None:
        old, new = _by_key(before), _by_key(now)
        for key, finding in new.items():
            if key not in old:
                self._log_event(
                    "warning",
                    "finding_raised",
                    finding=finding.recipe,
                    severity=finding.severity.value,
                    pool=finding.pool,
                    upstreams=list(finding.pods[:MAX_LOGGED_PODS]),
                    evidence=[describe(each) for each in finding.evidence[:MAX_LOGGED_EVIDENCE]],
                    fix=finding.first_step,
                )
        for key, finding in old.items():
            if key not in new:
                self._log_event(
                    "warning",
                    "finding_cleared",
                    finding=finding.recipe,
                    pool=finding.pool,
                    lasted_s=round(max(0.0, self._wall_clock() - finding.since_s), 1),
                )


def _by_key(findings: Iterable[Finding]) -> Mapping[tuple[str, str], Finding]:
    return {finding.key: finding for finding in findings}


def describe(evidence: Evidence) -> str:
    """Return one figure of evidence as text."""
    unit = f" {evidence.unit}" if evidence.unit else ""
    words = f"{evidence.name} {_figure(evidence.value)}{unit}"
    if evidence.compared is not None:
        words += f" ({evidence.basis or 'compared'}: {_figure(evidence.compared)}{unit})"
    return f"{words} at {evidence.pod}" if evidence.pod else words


def _figure(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return "unknown" if value is None else value
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.6f}" if 0 < abs(value) < 0.001 else f"{value:.4g}"


def brief_findings(findings: Iterable[Finding], max_pods: int) -> Iterator[dict[str, Any]]:
    """Yield what the operators' page shows of each finding, as JSON values."""
    for finding in findings:
        yield {
            "finding": finding.recipe,
            "title": finding.title,
            "severity": finding.severity.value,
            "pool": finding.pool,
            "pods": list(finding.pods[:max_pods]),
            "pod_count": len(finding.pods),
            "confidence": round(finding.confidence, 3),
            "since_s": round(finding.since_s, 3),
            "first_step": finding.first_step,
            "evidence": [describe(each) for each in finding.evidence[:MAX_LOGGED_EVIDENCE]],
        }
