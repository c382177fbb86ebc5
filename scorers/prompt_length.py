"""What it costs others that a prompt goes to a pod that was put up for prompts of another length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.facts import Prompts
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Suited:
    """A price, no cut: an idle pod of the wrong kind is better than a long queue before the right one.

    On a pod for short prompts, `stalling` times what own prefill takes beyond `short_s`: for that long those it is
    there for find it busy. On a pod for long prompts, `waiting_s` for a prompt that takes less than that: who is short
    may find a long one before it at any time.
    """

    name: ClassVar[str] = "suited"
    short_s: float = 0.5
    stalling: float = 2.0
    waiting_s: float = 0.5

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Nothing where all pods are for any prompt."""
        if not candidates.prompts:
            return []
        return [
            self._price_s(prompts, own_s) for prompts, own_s in zip(candidates.prompts, candidates.own_s, strict=True)
        ]

    def _price_s(self, prompts: Prompts, own_s: float) -> float:
        match prompts:
            case Prompts.SHORT:
                return self.stalling * max(0.0, own_s - self.short_s)
            case Prompts.LONG:
                return self.waiting_s * max(0.0, 1.0 - own_s / self.short_s)
            case _:
                return 0.0
