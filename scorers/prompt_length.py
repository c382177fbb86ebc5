"""Penalty for a prompt on a pod that is meant for prompts of another length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.facts import PromptLengths
from routing.request import Request


@dataclass(frozen=True, slots=True)
class PromptLengthAffinity:
    """Penalty, not a filter: an idle pod of the wrong kind is better than a long queue at the right one.

    On a pod for short prompts, prefill beyond `max_short_s` costs more, since short prompts find the pod busy. On a pod
    for long prompts, a prompt that takes less than `max_short_s` has a penalty, since a long one may be before it.
    """

    name: ClassVar[str] = "prompt_length"
    needs: ClassVar[str] = "prompts"
    max_short_s: float = 0.5
    """Maximum prefill seconds of a short prompt."""
    overrun_weight: float = 2.0
    """Penalty per second of prefill beyond `max_short_s`, on pods for short prompts."""
    short_penalty_s: float = 0.5
    """Maximum penalty of a short prompt on pods for long ones."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where all pods take any prompt."""
        if not candidates.prompts:
            return []
        return [
            self._price_s(prompts, own_s) for prompts, own_s in zip(candidates.prompts, candidates.own_s, strict=True)
        ]

    def _price_s(self, prompts: PromptLengths, own_s: float) -> float:
        match prompts:
            case PromptLengths.SHORT:
                return self.overrun_weight * max(0.0, own_s - self.max_short_s)
            case PromptLengths.LONG:
                return self.short_penalty_s * max(0.0, 1.0 - own_s / self.max_short_s)
            case _:
                return 0.0
