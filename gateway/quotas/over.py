"""The refusal of a request that an account has no room for: which limit, until when, and how its limits stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from gateway.quotas.told import Fields
from routing.refusal import Reason, Refused
from tenancy.limits.book import Lack
from tenancy.limits.use import Kind

REASONS: Mapping[Kind, Reason] = {
    Kind.REQUESTS: Reason.RATE_LIMITED_REQUESTS,
    Kind.TOKENS: Reason.RATE_LIMITED_TOKENS,
    Kind.INPUT: Reason.RATE_LIMITED_TOKENS,
    Kind.OUTPUT: Reason.RATE_LIMITED_TOKENS,
    Kind.UNCACHED: Reason.RATE_LIMITED_TOKENS,
    Kind.PARALLEL: Reason.TOO_MANY_PARALLEL,
    Kind.BUDGET: Reason.BUDGET_EXHAUSTED,
}

WORDS: Mapping[Kind, str] = {
    Kind.REQUESTS: "requests per minute",
    Kind.TOKENS: "tokens per minute",
    Kind.INPUT: "input tokens per minute",
    Kind.OUTPUT: "output tokens per minute",
    Kind.UNCACHED: "uncached input tokens per minute",
    Kind.PARALLEL: "requests at a time",
    Kind.BUDGET: "of budget",
}

JITTER = 0.1
"""Those who are refused together must not come back together: each waits up to so much longer than it has to."""

LEAST_WAIT_S = 0.05


class OverLimit(Refused):
    """`fields`: the headers that say how things stand."""

    def __init__(self, lacks: Sequence[Lack], fields: Fields, draw: float) -> None:
        worst = max(lacks, key=lambda lack: lack.wait_s)
        is_hopeless = worst.wait_s == inf
        super().__init__(
            REASONS[worst.kind],
            _message(worst),
            retry_after_s=None if is_hopeless else max(LEAST_WAIT_S, worst.wait_s) * (1 + JITTER * draw),
            hopeless=is_hopeless,
        )
        self.fields = fields
        self.lack = worst


def _message(lack: Lack) -> str:
    limit = f"`{lack.path}` has a limit of {lack.limit:g} {WORDS[lack.kind]}"
    if lack.wait_s == inf:
        return f"{limit}, and this request alone needs {lack.amount:g}: it can never be served."
    return f"{limit}, and not enough of it is left. Please try again in {lack.wait_s:.1f} s."
