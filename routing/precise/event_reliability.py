"""Whether an engine's KV events are reliable enough to decide: falls with gaps, rises with agreement.

Unreliability comes from outside (events were missed, or precede the subscription) or from responses: what an engine
actually reused, compared with what its events predicted. Pure: independent of events and engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIN_AGREEMENTS = 12
"""Responses in a row predicted to the block before an unreliable engine is trusted again."""

ANSWER_MEMORY = 32.0
"""Answers that the running error looks back on."""

MIN_ANSWERS = 8
"""Minimum number of observations before errors count: one evicted prompt is chance."""

MAX_ERROR = 0.25
"""Share of wrongly predicted tokens from which the events cannot be right any more."""


SHORT_ANSWERS = 8
"""Responses in a row that reused exactly one block less than predicted before this counts as the engine's behaviour."""


class UnreliableReason(StrEnum):
    """Why an engine's events are not reliable."""

    NO_EVENTS = "unheard"
    """It publishes nothing, or nothing has been received yet."""
    LATE = "late"
    """We joined when it had cached already, and it could not tell us what."""
    GAP = "gap"
    """Some of what it said is lost."""
    DRIFT = "drift"
    """What it reuses is not what its events say."""


@dataclass(slots=True)
class EventReliability:
    """One engine's. Mutable; asked before every sight."""

    unreliable_reason: UnreliableReason | None = UnreliableReason.NO_EVENTS
    answers: float = 0.0
    error_tokens: float = 0.0
    """Wrongly predicted, over the responses remembered."""
    tokens: float = 0.0
    """Of them cached, predicted or really, whichever is more."""
    agreed: int = 0
    """Responses in a row that were predicted."""
    trim_tokens: int = 0
    """What the engine leaves of every hit: with a draft model (EAGLE, MTP) it recomputes the last block."""
    _one_off: int = 0
    """Responses in a row that were wrong by one block in the same direction."""

    @property
    def is_reliable(self) -> bool:
        return self.unreliable_reason is None

    @property
    def error(self) -> float:
        """Share of cached tokens that was predicted wrongly, decayed over 32 responses."""
        return self.error_tokens / self.tokens if self.tokens else 0.0

    def mark_complete(self) -> None:
        """All that the engine holds is known: from its first event on, or since it was cleared."""
        self.unreliable_reason = None
        self._restart()

    def mark_unreliable(self, reason: UnreliableReason) -> bool:
        """Something was missed. True where that is news."""
        is_new = self.unreliable_reason is None
        self.unreliable_reason = reason
        self._restart()
        return is_new

    def observe(self, predicted: int, real: int, block_tokens: int) -> bool:
        """Take note of an answer. True where the engine lost or won our trust by it."""
        self._learn_trim(predicted - real, predicted, block_tokens)
        kept = 1 - 1 / ANSWER_MEMORY
        self.answers = self.answers * kept + 1
        self.error_tokens = self.error_tokens * kept + abs(predicted - real)
        self.tokens = self.tokens * kept + max(predicted, real)
        if abs(predicted - real) >= block_tokens:
            self.agreed = 0
        elif real:
            # A response without reuse, for which none was predicted, carries no information.
            self.agreed += 1
        return self._fell_by_drift() or self._rose()

    def reusable(self, tokens: int) -> int:
        """How much of what it holds it will reuse."""
        return max(0, tokens - self.trim_tokens)

    def _learn_trim(self, short_by: int, predicted: int, block_tokens: int) -> None:
        is_one_off = short_by == (-block_tokens if self.trim_tokens else block_tokens)
        if predicted or self.trim_tokens:
            self._one_off = self._one_off + 1 if is_one_off else 0
        if self._one_off >= SHORT_ANSWERS:
            self.trim_tokens = 0 if self.trim_tokens else block_tokens
            self._one_off = 0

    def _fell_by_drift(self) -> bool:
        # Small prompts are a block or none: they alone do not condemn.
        if self.unreliable_reason is None and self.answers > MIN_ANSWERS and self.error > MAX_ERROR:
            return self.mark_unreliable(UnreliableReason.DRIFT)
        return False

    def _rose(self) -> bool:
        if (
            self.unreliable_reason is None
            or self.unreliable_reason is UnreliableReason.NO_EVENTS
            or self.agreed < MIN_AGREEMENTS
        ):
            return False
        self.mark_complete()
        return True

    def _restart(self) -> None:
        self.answers = self.error_tokens = self.tokens = 0.0
        self.agreed = 0
