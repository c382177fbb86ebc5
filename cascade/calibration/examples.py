"""Labelled examples: one prompt answered by every rung, each answer with its score, its signals and its price.

Values. Know no file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt. All tuples go by rung, cheapest first; there are two rungs or more."""

    bucket: str
    scores: tuple[float, ...]
    """Of each rung's answer, 0 (worthless) to 1 (as good as can be)."""
    signals: tuple[float, ...]
    """Of each rung but the top; higher = surer, nan where it is not known."""
    costs: tuple[float, ...]
    """Of each rung's whole answer."""
    wasted: tuple[float, ...]
    """Of what each rung but the top has computed when its answer is given up; nothing where the prompt decides."""

    @property
    def top(self) -> int:
        return len(self.scores) - 1


def fingerprint(examples: Sequence[Example]) -> str:
    """Of what was calibrated on, so that a ladder file can be held against its data: sha256:HEX."""
    digest = sha256()
    for example in examples:
        told = (example.bucket, example.scores, example.signals, example.costs, example.wasted)
        digest.update(repr(told).encode())
    return f"sha256:{digest.hexdigest()}"
