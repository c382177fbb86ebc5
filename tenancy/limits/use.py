"""What one request takes, in the units that limits are in. Values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter

from msgspec import Struct

from tenancy.quota import Quota


class Kind(StrEnum):
    """What is limited."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    """Input and output together."""
    INPUT = "input_tokens"
    OUTPUT = "output_tokens"
    UNCACHED = "uncached_tokens"
    """Input that no engine held already."""
    PARALLEL = "parallel_requests"
    BUDGET = "budget"

    __hash__ = str.__hash__

    @property
    def counts_output(self) -> bool:
        """Whether it fills while an answer is generated."""
        return self in OUTPUT_KINDS


TOKEN_KINDS = frozenset({Kind.TOKENS, Kind.INPUT, Kind.OUTPUT, Kind.UNCACHED})
OUTPUT_KINDS = frozenset({Kind.TOKENS, Kind.OUTPUT, Kind.BUDGET})


class Rates(Struct, frozen=True, gc=False):
    """Money per token; input that an engine held already may be cheaper."""

    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0


FREE = Rates()


class Use(Struct, frozen=True, gc=False):
    """What a request takes, or is expected to take."""

    requests: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of `input_tokens`."""
    output_tokens: int = 0
    rates: Rates = FREE

    @property
    def cost(self) -> float:
        rates = self.rates
        cold = self.input_tokens - self.cached_tokens
        return cold * rates.input + self.cached_tokens * rates.cached + self.output_tokens * rates.output


NOTHING = Use(requests=0)

AMOUNT: Mapping[Kind, Callable[[Use], float]] = {
    Kind.REQUESTS: attrgetter("requests"),
    Kind.TOKENS: lambda use: use.input_tokens + use.output_tokens,
    Kind.INPUT: attrgetter("input_tokens"),
    Kind.OUTPUT: attrgetter("output_tokens"),
    Kind.UNCACHED: lambda use: use.input_tokens - use.cached_tokens,
    Kind.PARALLEL: attrgetter("requests"),
    Kind.BUDGET: attrgetter("cost"),
}
"""How much of each limit a use takes."""


def limits_of(quota: Quota) -> dict[Kind, float]:
    """The limits that a quota sets."""
    every = {
        Kind.REQUESTS: quota.requests_per_min,
        Kind.TOKENS: quota.tokens_per_min,
        Kind.INPUT: quota.input_tokens_per_min,
        Kind.OUTPUT: quota.output_tokens_per_min,
        Kind.UNCACHED: quota.uncached_tokens_per_min,
        Kind.PARALLEL: quota.parallel_requests,
        Kind.BUDGET: quota.budget,
    }
    return {kind: float(limit) for kind, limit in every.items() if limit is not None}
