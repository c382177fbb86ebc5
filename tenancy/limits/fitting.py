"""Cuts what a request is expected to take to what its limits have in all, but never below what it needs for certain.

So an expectation alone never makes a request too large for a limit; what a stream needs beyond it is topped up while it
runs. Knows no time and nothing of what is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from tenancy.limits.use import AMOUNT, Kind, Use

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
