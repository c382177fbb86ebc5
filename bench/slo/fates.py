"""The result of each request that was offered, on any router. Times in seconds from the beginning of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.slo.traffic import Offered
from simulator.profile import Profile
from tenancy.objective import Tier


@dataclass(frozen=True, slots=True)
class No:
    """One attempt without a whole answer. `after_s`: how long the client waited to hear of it."""

    reason: str
    after_s: float
    started: bool = False
    """Its answer had begun: it is lost, not refused."""


@dataclass(slots=True)
class RequestResult:
    """One offered request over all its attempts: it counts once, from when it was first asked."""

    offered: Offered
    noes: list[No] = field(default_factory=list)
    first_token_s: float | None = None
    end_s: float | None = None
    """None where it never got its whole answer."""
    cached_tokens: int = 0

    @property
    def is_answered(self) -> bool:
        return self.end_s is not None

    def started_by(self, at_s: float) -> bool:
        """Whether the whole answer came, and its first token by then."""
        return self.is_answered and self.first_token_s is not None and self.first_token_s <= at_s

    @property
    def is_rejected(self) -> bool:
        """Whether that is how it ended."""
        return not self.is_answered and bool(self.noes) and not self.noes[-1].started

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.offered.at_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first."""
        if self.first_token_s is None or self.end_s is None or self.offered.answer_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.offered.answer_tokens - 1)

    @property
    def tokens(self) -> int:
        """What it is worth in tokens, prompt and answer."""
        return self.offered.prompt_tokens + self.offered.answer_tokens

    def is_met(self, tier: Tier, profile: Profile) -> bool:
        """Whether the whole response met its tier's objectives: a rejection, an error or a lost one is a miss."""
        if self.end_s is None or self.ttft_s is None:
            return False
        cold_s = profile.prefill_s(self.cached_tokens, self.offered.prompt_tokens - self.cached_tokens)
        if self.ttft_s > tier.ttft_s + tier.ttft_uncached_factor * cold_s:
            return False
        return self.tpot_s is None or self.tpot_s <= tier.tpot_s
