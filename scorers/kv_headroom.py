"""Seconds of waiting for KV memory where an engine cannot hold this request beside what runs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class KvCacheHeadroom:
    """Wait for KV memory: overflow / (KV in use / mean residence), the rate at which running sequences free KV.

    The rate follows from Little's law. Cached tokens count as needing room too: they may be evicted meanwhile.
    """

    name: ClassVar[str] = "kv_headroom"
    needs: ClassVar[str] = "lacks_kv_room"

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return 0 where there is room, or where an engine has not reported its capacity."""
        needed = candidates.prompt_tokens + candidates.output_tokens
        if max(candidates.kv_tokens) + needed <= candidates.min_kv_capacity:
            return []
        return [
            self._wait_s(in_use, in_use + needed - capacity, residence)
            for in_use, capacity, residence in zip(
                candidates.kv_tokens, candidates.kv_capacity, candidates.residence_s, strict=True
            )
        ]

    @staticmethod
    def _wait_s(in_use: float, overflow: float, residence_s: float) -> float:
        return overflow / max(in_use, overflow) * residence_s if overflow > 0 else 0.0
