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


Limits = Iterable[tuple[Kind, float]]


def fitted(expected: Use, least: Use, limits: Limits) -> Use:
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
    most = most_output(cut, limits)
    if cut.output_tokens > most:
        cut = replace(cut, output_tokens=max(least.output_tokens, int(most)))
    return cut


def most_output(use: Use, limits: Limits) -> float:
    """Return how many tokens of output there is room for beside the input of `use`; infinite where none is limited."""
    rooms = [inf]
    for kind, limit in limits:
        if kind is Kind.OUTPUT:
            rooms.append(limit)
        elif kind is Kind.TOKENS:
            rooms.append(limit - use.input_tokens)
        elif kind is Kind.BUDGET and use.rates.output:
            rooms.append((limit - replace(use, output_tokens=0).cost) / use.rates.output)
    return max(0.0, min(rooms))


def _most_input(kind: Kind, limit: float, expected: Use, least: Use) -> float:
    if kind is Kind.INPUT:
        return limit
    if kind is Kind.TOKENS:
        return limit - least.output_tokens
    if kind is Kind.UNCACHED:
        return limit + expected.cached_tokens
    rates = expected.rates
    if kind is not Kind.BUDGET or not rates.input:
        return inf
    room, cached = limit - least.output_tokens * rates.output, expected.cached_tokens
    if room < cached * rates.cached:
        return room / rates.cached
    return cached + (room - cached * rates.cached) / rates.input
