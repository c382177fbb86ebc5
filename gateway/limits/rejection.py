"""The refusal of a request that an account has no room for: which limit, until when, and how its limits stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from gateway.limits.rate_limit_headers import Fields, show_period, show_wait
from routing.rejection import Reason, Refused
from tenancy.limits.account_usage import Lack
from tenancy.limits.usage import Kind

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
    Kind.REQUESTS: "a limit of {limit:g} requests per minute",
    Kind.TOKENS: "a limit of {limit:g} tokens per minute",
    Kind.INPUT: "a limit of {limit:g} input tokens per minute",
    Kind.OUTPUT: "a limit of {limit:g} output tokens per minute",
    Kind.UNCACHED: "a limit of {limit:g} uncached input tokens per minute",
    Kind.PARALLEL: "a limit of {limit:g} requests at a time",
    Kind.BUDGET: "a budget of {limit:g} per {period}, in the currency of the models' prices",
}

JITTER = 0.1
"""Those who are refused together must not come back together: each waits up to so much longer than it has to."""

LEAST_WAIT_S = 0.05


class OverLimit(Refused):
    """`fields`: the headers that say how things stand."""

    def __init__(self, lacks: Sequence[Lack], fields: Fields, draw: float) -> None:
        worst = max(lacks, key=lambda lack: lack.wait_s)
        is_hopeless = worst.wait_s == inf
        wait_s = max(LEAST_WAIT_S, worst.wait_s) * (1 + JITTER * draw)
        super().__init__(
            REASONS[worst.kind],
            _message(worst, wait_s),
            retry_after_s=None if is_hopeless else wait_s,
            hopeless=is_hopeless,
        )
        self.fields = fields
        self.lack = worst


def _message(lack: Lack, wait_s: float) -> str:
    """`wait_s`: as the headers have it."""
    limit = f"`{lack.path}` has {WORDS[lack.kind].format(limit=lack.limit, period=show_period(lack.period_s))}"
    if lack.wait_s == inf:
        return f"{limit}, and this request alone needs {lack.amount:g}: it can never be served."
    return f"{limit}, and not enough of it is left. Please try again in {show_wait(wait_s)}."
