"""What one request takes, in the units that limits are in, and what is reserved for it.

An expectation is cut to what the limits have in all, but never below what the request needs for certain: so an
expectation alone never makes a request too large for a limit. What a stream needs beyond it is topped up while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from math import inf
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from tenancy.tenants import Quota


class LimitKind(StrEnum):
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


TOKEN_KINDS = frozenset({LimitKind.TOKENS, LimitKind.INPUT, LimitKind.OUTPUT, LimitKind.UNCACHED})
OUTPUT_KINDS = frozenset({LimitKind.TOKENS, LimitKind.OUTPUT, LimitKind.BUDGET})


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


Limits = Iterable[tuple[LimitKind, float]]


def fit_to_limits(expected: RequestUsage, least: RequestUsage, limits: Limits) -> RequestUsage:
    """Return what to reserve: `expected`, cut to `limits`, and at least `least`."""
    limits = tuple(limits)
    for kind, limit in limits:
        if AMOUNT[kind](expected) > limit:
            break
    else:
        return expected
    most = min([_most_input(kind, limit, expected, least) for kind, limit in limits], default=inf)
    input_tokens = expected.input_tokens
    if input_tokens > most:
        input_tokens = max(least.input_tokens, int(most))
    cut = replace(expected, input_tokens=input_tokens, cached_tokens=min(expected.cached_tokens, input_tokens))
    most = max_output(cut, limits)
    if cut.output_tokens > most:
        cut = replace(cut, output_tokens=max(least.output_tokens, int(most)))
    return cut


def max_output(use: RequestUsage, limits: Limits) -> float:
    """Return how many tokens of output there is room for beside the input of `use`; infinite where none is limited."""
    rooms = [inf]
    for kind, limit in limits:
        if kind is LimitKind.OUTPUT:
            rooms.append(limit)
        elif kind is LimitKind.TOKENS:
            rooms.append(limit - use.input_tokens)
        elif kind is LimitKind.BUDGET and use.rates.output:
            rooms.append((limit - replace(use, output_tokens=0).cost) / use.rates.output)
    return max(0.0, min(rooms))


def _most_input(kind: LimitKind, limit: float, expected: RequestUsage, least: RequestUsage) -> float:
    if kind is LimitKind.INPUT:
        return limit
    if kind is LimitKind.TOKENS:
        return limit - least.output_tokens
    if kind is LimitKind.UNCACHED:
        return limit + expected.cached_tokens
    rates = expected.rates
    if kind is not LimitKind.BUDGET or not rates.input:
        return inf
    room, cached = limit - least.output_tokens * rates.output, expected.cached_tokens
    if room < cached * rates.cached:
        return room / rates.cached
    return cached + (room - cached * rates.cached) / rates.input
