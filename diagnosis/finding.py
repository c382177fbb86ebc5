"""What diagnosis answers: findings with their evidence, what could not be checked, and the first question. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is for requests, worst first."""

    FAILING = "failing"
    """Requests fail, or wait without progress."""
    DEGRADING = "degrading"
    """Requests are slower than they have to be."""
    ADVICE = "advice"
    """Nothing is slower yet."""


SEVERITY_ORDER = {severity: rank for rank, severity in enumerate(Severity)}


class Question(StrEnum):
    """Answers to the first question: where does the time go that requests did not need before?"""

    ROUTING = "routing"
    """The gateway, admission, or the choice of engines."""
    PREFILL = "prefill"
    DECODE = "decode"
    TRANSFER = "transfer"
    NOTHING = "nothing"
    """As before."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure that a finding rests on, beside what it was compared with."""

    name: str
    value: float | str | None
    compared: float | str | None = None
    basis: str = ""
    """What `compared` is: `peers`, `baseline`, `limit`, `nominal`, `pool`."""
    unit: str = ""
    pod: str = ""
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One recipe's fault in one pool. `pods` are the addresses it concerns; empty: the fleet or the gateway itself."""

    recipe: str
    title: str
    question: Question
    severity: Severity
    pool: str
    pods: tuple[str, ...]
    confidence: float
    """0 to 1."""
    evidence: tuple[Evidence, ...]
    cause: str
    first_step: str
    helped: str
    """How to see that the first step helped."""
    wrong_if: str
    """What it would look like if the finding were wrong."""
    since_s: float
    """Unix time at which the evidence was first seen."""
    explained_by: str = ""
    """Name of another raised recipe of which this one is probably a consequence."""
    affected: tuple[str, ...] = ()
    """Addresses of other pods at which its consequences show."""

    @property
    def key(self) -> tuple[str, str]:
        """Return recipe and pool: one finding of a kind at a time."""
        return self.recipe, self.pool


@dataclass(frozen=True, slots=True)
class Gap:
    """A recipe that could not be checked: `reason` says what was missing, too old or too little."""

    recipe: str
    pool: str
    pods: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """The answer to the first question, and why."""

    question: Question
    reason: str
    seconds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By phase: seconds a request now, and as the baseline has it for this workload."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything found at one time; findings in order, the first one to look at first."""

    at_s: float
    first: FirstAnswer
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether nothing was found while recipes could not be checked."""
        return not self.findings and bool(self.gaps)
