"""PolyServe's rule: the fullest engine that can still keep the objectives, so that others stay free for the strict."""

from __future__ import annotations

from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request

INFEASIBLE = 1e6
"""More sequences than any engine runs."""


class FullestFeasible:
    """Feasible: first token within `ttft_s`, tokens within `tpot_s`, both at the rates the router has learned. Where
    none is, the soonest first token.
    """

    name: ClassVar[str] = "fullest-feasible"

    def __init__(self, ttft_s: float = 2.0, tpot_s: float = 0.025) -> None:
        self._ttft_s = ttft_s
        self._tpot_s = tpot_s

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Fewer is worse: minus the sequences there; among equally full ones the sooner."""
        return [
            ttft_s * 1e-6 - running
            if ttft_s <= self._ttft_s and step + each * (running + 1) <= self._tpot_s
            else INFEASIBLE + ttft_s
            for ttft_s, running, step, each in zip(
                first_token_s(candidates),
                candidates.running,
                candidates.step_base_s,
                candidates.step_per_sequence_s,
                strict=True,
            )
        ]


def first_token_s(candidates: Candidates) -> list[float]:
    """Queue and own cold work, as learned."""
    return [
        (ahead + work) * pace
        for ahead, work, pace in zip(
            candidates.ahead_tokens, candidates.prefill_work, candidates.seconds_per_token, strict=True
        )
    ]
