"""From facts to findings: one look at the fleet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnosis.baseline import Baseline
from diagnosis.facts import FleetFacts
from diagnosis.finding import Diagnosis, FirstAnswer, Question

Subject = tuple[str, str, str]
"""Recipe, pool and pod (empty: no single pod)."""


@dataclass(frozen=True, slots=True)
class Track:
    """Evidence against one subject over several looks."""

    since_s: float
    last_s: float
    is_raised: bool = False


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    """What one look leaves to the next. Begin with an empty one; keep it as it is."""

    tracks: Mapping[Subject, Track] = field(default_factory=dict)


def diagnose(
    facts: FleetFacts, baseline: Baseline | None, state: DiagnosisState, now_s: float
) -> tuple[Diagnosis, DiagnosisState]:
    """Look once; call every 5 s with windows of about 30 s. Return the findings, and the state for the next look.

    `now_s` is Unix time. A finding is raised after 15 s of evidence and cleared 20 s after its last evidence.
    """
    return Diagnosis(now_s, FirstAnswer(Question.UNKNOWN, "not built yet")), state
