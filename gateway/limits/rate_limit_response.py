"""What clients see of their quotas: rate-limit headers as OpenAI or Anthropic name them, and the rejection (429)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, inf

from routing.rejection import Reason, RequestRejected
from tenancy.limits.account_usage import AccountUsage, LimitExceeded
from tenancy.limits.usage import TOKEN_KINDS, LimitKind

RateLimitHeaders = tuple[tuple[str, str], ...]

HeaderNames = tuple[tuple[tuple[str, str, str], frozenset[LimitKind]], ...]
"""Names of the headers for limit, remaining and reset, with the limits that they report."""


def _header_names(name: str, **kinds: frozenset[LimitKind]) -> HeaderNames:
    units = ((unit.replace("_", "-"), meant) for unit, meant in kinds.items())
    return tuple(
        ((name.format("limit", unit), name.format("remaining", unit), name.format("reset", unit)), meant)
        for unit, meant in units
    )


OPENAI_HEADERS = _header_names("x-ratelimit-{0}-{1}", requests=frozenset({LimitKind.REQUESTS}), tokens=TOKEN_KINDS)

ANTHROPIC_HEADERS = _header_names(
    "anthropic-ratelimit-{1}-{0}",
    requests=frozenset({LimitKind.REQUESTS}),
    input_tokens=frozenset({LimitKind.TOKENS, LimitKind.INPUT, LimitKind.UNCACHED}),
    output_tokens=frozenset({LimitKind.TOKENS, LimitKind.OUTPUT}),
)


def rate_limit_headers(accounts: Iterable[AccountUsage], now_s: float, *, anthropic: bool) -> RateLimitHeaders:
    """The headers of limit, remaining and reset, for the tightest account; empty where no limit is per minute."""
    meters = [meter for account in accounts for meter in account.limit_usages.values()]
    fields: list[tuple[str, str]] = []
    last_s, resets = -inf, ""
    for (limit, remaining, reset), kinds in ANTHROPIC_HEADERS if anthropic else OPENAI_HEADERS:
        tightest, smallest = None, inf
        for meter in meters:
            if meter.kind in kinds:
                meter.advance(now_s)
                if (left := meter.remaining) < smallest:
                    tightest, smallest = meter, left
        if tightest is not None:
            resets_in_s = tightest.frees_in_s(tightest.counter.used, now_s)
            if resets_in_s != last_s:  # Limits that the same request has filled last are free at the same time.
                last_s = resets_in_s
                resets = format_time(now_s + resets_in_s) if anthropic else format_span(resets_in_s)
            fields += (limit, f"{tightest.limit:.0f}"), (remaining, f"{int(smallest)}"), (reset, resets)
    return tuple(fields)


def format_span(seconds: float) -> str:
    """Seconds as OpenAI formats them: `6ms`, `1.5s`, `1m0.052s`, `2h3m0s`."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    if seconds < 59.999:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{shown}s"


def format_time(at_s: float) -> str:
    """A time in seconds since the epoch as Anthropic formats it: RFC 3339, UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_wait(seconds: float) -> str:
    """A wait in whole seconds as in `retry-after`; below one second in milliseconds as in `retry-after-ms`."""
    return f"{ceil(seconds)} s" if seconds >= 1.0 else f"{ceil(seconds * 1000)} ms"


_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def format_period(seconds: float) -> str:
    """A period as it reads after "per": `day`, `2 weeks`, `90 seconds`."""
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds % length == 0), _UNITS[-1])
    count = round(seconds / length)
    return unit if count == 1 else f"{count} {unit}s"


REASONS: Mapping[LimitKind, Reason] = {
    LimitKind.REQUESTS: Reason.RATE_LIMITED_REQUESTS,
    LimitKind.TOKENS: Reason.RATE_LIMITED_TOKENS,
    LimitKind.INPUT: Reason.RATE_LIMITED_TOKENS,
    LimitKind.OUTPUT: Reason.RATE_LIMITED_TOKENS,
    LimitKind.UNCACHED: Reason.RATE_LIMITED_TOKENS,
    LimitKind.PARALLEL: Reason.TOO_MANY_PARALLEL_REQUESTS,
    LimitKind.BUDGET: Reason.BUDGET_EXHAUSTED,
}

PHRASES: Mapping[LimitKind, str] = {
    LimitKind.REQUESTS: "a limit of {limit:g} requests per minute",
    LimitKind.TOKENS: "a limit of {limit:g} tokens per minute",
    LimitKind.INPUT: "a limit of {limit:g} input tokens per minute",
    LimitKind.OUTPUT: "a limit of {limit:g} output tokens per minute",
    LimitKind.UNCACHED: "a limit of {limit:g} uncached input tokens per minute",
    LimitKind.PARALLEL: "a limit of {limit:g} requests at a time",
    LimitKind.BUDGET: "a budget of {limit:g} per {period}, in the currency of the models' prices",
}

JITTER = 0.1
"""Share of the wait added at random, so that requests rejected together do not return together."""

MIN_WAIT_S = 0.05


class QuotaExceeded(RequestRejected):
    """Rejects a request that exceeds a limit. `lack`: the limit with the longest wait; `fields`: the headers."""

    def __init__(self, lacks: Sequence[LimitExceeded], fields: RateLimitHeaders, draw: float) -> None:
        worst = max(lacks, key=lambda lack: lack.wait_s)
        is_hopeless = worst.wait_s == inf
        wait_s = max(MIN_WAIT_S, worst.wait_s) * (1 + JITTER * draw)
        super().__init__(
            REASONS[worst.kind],
            _message(worst, wait_s),
            retry_after_s=None if is_hopeless else wait_s,
            hopeless=is_hopeless,
        )
        self.fields = fields
        self.lack = worst


def _message(lack: LimitExceeded, wait_s: float) -> str:
    """The error message. `wait_s`: the wait that `retry-after` reports."""
    limit = f"`{lack.path}` has {PHRASES[lack.kind].format(limit=lack.limit, period=format_period(lack.period_s))}"
    if lack.wait_s == inf:
        return f"{limit}, and this request alone needs {lack.amount:g}: it exceeds the limit by itself."
    return f"{limit}, and not enough of it is left. Please try again in {format_wait(wait_s)}."
