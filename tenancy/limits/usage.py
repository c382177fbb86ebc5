"""What one request takes, in the units that limits are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter

from msgspec import Struct

from tenancy.tenants import Quota


class LimitKind(StrEnum):
    """What is limited."""

    REQUESTS = "requests"
    """Requests in any sixty seconds (`rpm`)."""
    TOKENS = "tokens"
    """Tokens in any sixty seconds, input and output together (`tpm`)."""
    INPUT = "input_tokens"
    """Input tokens in any sixty seconds (`input_tpm`)."""
    OUTPUT = "output_tokens"
    """Output tokens in any sixty seconds (`output_tpm`)."""
    UNCACHED = "uncached_tokens"
    """Input tokens that no engine had cached, in any sixty seconds (`uncached_tpm`)."""
    PARALLEL = "parallel_requests"
    """Concurrent requests (`max_parallel_requests`)."""
    BUDGET = "budget"
    """Money within a period (`max_budget`)."""

    __hash__ = str.__hash__


TOKEN_KINDS = frozenset({LimitKind.TOKENS, LimitKind.INPUT, LimitKind.OUTPUT, LimitKind.UNCACHED})
OUTPUT_KINDS = frozenset({LimitKind.TOKENS, LimitKind.OUTPUT, LimitKind.BUDGET})
"""Limits that fill while an answer is generated."""


class TokenPrices(Struct, frozen=True, gc=False):
    """Money per token; input that an engine held already may be cheaper."""

    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0


FREE = TokenPrices()


class RequestUsage(Struct, frozen=True, gc=False):
    """What a request takes, or is expected to take."""

    requests: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of `input_tokens`."""
    output_tokens: int = 0
    rates: TokenPrices = FREE

    @property
    def cost(self) -> float:
        rates = self.rates
        cold = self.input_tokens - self.cached_tokens
        return cold * rates.input + self.cached_tokens * rates.cached + self.output_tokens * rates.output


NO_USAGE = RequestUsage(requests=0)

AMOUNT: Mapping[LimitKind, Callable[[RequestUsage], float]] = {
    LimitKind.REQUESTS: attrgetter("requests"),
    LimitKind.TOKENS: lambda use: use.input_tokens + use.output_tokens,
    LimitKind.INPUT: attrgetter("input_tokens"),
    LimitKind.OUTPUT: attrgetter("output_tokens"),
    LimitKind.UNCACHED: lambda use: use.input_tokens - use.cached_tokens,
    LimitKind.PARALLEL: attrgetter("requests"),
    LimitKind.BUDGET: attrgetter("cost"),
}
"""How much of each limit a use takes."""


def limits_of(quota: Quota) -> dict[LimitKind, float]:
    """The limits that a quota sets."""
    every = {
        LimitKind.REQUESTS: quota.requests_per_min,
        LimitKind.TOKENS: quota.tokens_per_min,
        LimitKind.INPUT: quota.input_tokens_per_min,
        LimitKind.OUTPUT: quota.output_tokens_per_min,
        LimitKind.UNCACHED: quota.uncached_tokens_per_min,
        LimitKind.PARALLEL: quota.parallel_requests,
        LimitKind.BUDGET: quota.budget,
    }
    return {kind: float(limit) for kind, limit in every.items() if limit is not None}
