"""What an engine counts of its steps, as vLLM does: tokens of each, gaps between outputs, drafts. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.histogram import Histogram

GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
"""vLLM's bucket limits of `inter_token_latency_seconds`."""

STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
"""vLLM's bucket limits of `iteration_tokens_total`: 1, then 8 to 16,384."""


@dataclass(slots=True)
class StepBook:
    """One engine's steps since it started. Times come in engine seconds and are kept in real ones."""

    time_scale: float = 1.0
    gaps: Histogram = field(default_factory=lambda: Histogram(GAP_S))
    tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def observe(self, steps: int, mean_s: float, decoding: int, batched: int) -> None:
        """Count equal steps: the mean seconds of one, how many sequences decoded in each, and its tokens."""
        if decoding:
            self.gaps.observe(mean_s / self.time_scale, steps * decoding)
        if batched:
            self.tokens.observe(batched, steps)

    def draft(self, drafts: int, drafted: int, gained: int) -> None:
        """Count drafts of `drafted` tokens each; sequences gained `gained` tokens with them in all."""
        self.drafts += drafts
        self.draft_tokens += drafts * drafted
        self.accepted_tokens += max(gained - drafts, 0)
