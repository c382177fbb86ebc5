"""Prefers engines that have the request's LoRA adapter loaded: another must load it first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class LoraAffinity:
    """Seconds to load the request's LoRA adapter on engines that do not hold it."""

    name: ClassVar[str] = "lora_affinity"
    needs: ClassVar[str] = "holds_adapter"
    load_s: float = 0.5
    """Seconds to load an adapter of a few hundred MB from host memory or disk to the GPU."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return 0 for engines that hold the adapter; an empty list where the model is not an adapter."""
        if not candidates.holds_adapter:
            return []
        return [0.0 if held else self.load_s for held in candidates.holds_adapter]
