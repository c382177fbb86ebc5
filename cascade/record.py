"""Result of one request to a cascade: every model called, its signal, tokens, cost and verdict.

A value for log, metrics, receipt and `hearth cascade report`. Holds no text.
"""

from __future__ import annotations

from msgspec import Struct

KEPT = "kept"
"""Accepted by the judge."""
ESCALATED = "escalated"
"""Rejected by the judge and discarded."""
UNJUDGED = "unjudged"
"""Not judged: the largest model allowed, or one that answers because no other is available."""
FAILED = "failed"
"""It gave no answer."""

KEPT_FOR_ESCALATION_LIMIT = "escalation_limit"
"""Why an answer was accepted that is not good enough: the tenant's share of escalated answers is used up."""


class CascadeStep(Struct, frozen=True):
    """One model that was called."""

    model: str
    result: str
    reason: str = ""
    """When and by what it was judged: the window, its end, a fault of its shape; or why it was still kept."""
    signal: float | None = None
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """By the prices of the models; what was thrown away by what was counted here."""
    holdback_s: float = 0.0


class ExplainedStep(CascadeStep, frozen=True, kw_only=True):
    """One model that was called, whose answer was judged by a combined signal."""

    signal_parts: dict[str, float]
    """What each input adds to the sum of which the signal is the logistic function."""


class CascadeResult(Struct, frozen=True):
    """What a cascade did for one request. Costs are in the currency of the prices."""

    cascade: str
    bucket: str
    first_model: str
    """The model that was to be called first."""
    steps: tuple[CascadeStep, ...] = ()
    """The models that were called, in order."""
    skipped: tuple[str, ...] = ()
    """Those that could not or might not answer."""
    judged: int = 0
    """How many answers were judged."""
    cost: float = 0.0
    """Of all calls for it."""
    wasted_cost: float = 0.0
    """Of what the client did not get."""
    wasted_tokens: int = 0
    """Output that was thrown away."""
    cost_always_largest: float = 0.0
    """What an answer of the same length would have cost there."""
    cost_always_first: float = 0.0

    @property
    def answering_step(self) -> CascadeStep | None:
        """The model whose answer the client got."""
        return answering_step_of(self.steps)

    @property
    def is_escalated(self) -> bool:
        return any(step.result == ESCALATED for step in self.steps)


def answering_step_of(steps: tuple[CascadeStep, ...]) -> CascadeStep | None:
    """The model whose answer the client got, where one did."""
    return steps[-1] if steps and steps[-1].result in (KEPT, UNJUDGED) else None
