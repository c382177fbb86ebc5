"""What a recipe is: texts for people, and a function that looks for its evidence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.scene import Scene


@dataclass(frozen=True, slots=True)
class Indication:
    """Evidence in one look, against one pod or (empty `pod`) against a pool or the fleet."""

    pool: str
    pod: str
    evidence: tuple[Evidence, ...]
    confidence: float = 0.9
    """0 to 1: below 0.7 where figures that would confirm it are missing."""
    severity: Severity | None = None
    """None: the recipe's own."""
    affected: tuple[str, ...] = ()
    """Other pods at which its consequences show, as slow transfers do at both ends."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a recipe could not be checked on one pod, or (empty `pod`) on a pool or the fleet."""

    pool: str
    pod: str
    reason: str


Look = Callable[[Scene], Iterable[Indication | Missing]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One fault that is known. The texts are sentences; one first step changes one thing."""

    name: str
    title: str
    question: Question
    severity: Severity
    symptom: str
    looks_at: str
    """The figures that it reads, and when they count."""
    cause: str
    first_step: str
    helped: str
    """How to see that the first step helped."""
    wrong_if: str
    """What it would look like if it were wrong."""
    look: Look
    raise_after_s: float = 15.0
    """Seconds of evidence after which its finding is raised: longer where single windows are noisy."""
    depends_on_requests: bool = True
    """Whether requests alone can bring its evidence about: then no pod is drained for it, because one tenant could
    choose which.
    """
    explains: tuple[str, ...] = ()
    """Names of recipes whose evidence this fault brings about."""
