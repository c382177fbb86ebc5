"""What clients see of their quotas: rate-limit headers as OpenAI or Anthropic name them, and the rejection (429)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, inf
from operator import itemgetter

from routing.rejection import Reason, Refused
from tenancy.limits.account_usage import Book, Lack, Meter
from tenancy.limits.usage import TOKEN_KINDS, Kind

Fields = tuple[tuple[str, str], ...]

HeaderNames = tuple[tuple[tuple[str, str, str], frozenset[Kind]], ...]
"""Names of the headers for limit, remaining and reset, with the limits that they report."""


def _header_names(name: str, **kinds: frozenset[Kind]) -> HeaderNames:
    units = ((unit.replace("_", "-"), meant) for unit, meant in kinds.items())
    return tuple(
        ((name.format("limit", unit), name.format("remaining", unit), name.format("reset", unit)), meant)
        for unit, meant in units
    )


OPENAI = _header_names("x-ratelimit-{0}-{1}", requests=frozenset({Kind.REQUESTS}), tokens=TOKEN_KINDS)

ANTHROPIC = _header_names(
    "anthropic-ratelimit-{1}-{0}",
    requests=frozenset({Kind.REQUESTS}),
    input_tokens=frozenset({Kind.TOKENS, Kind.INPUT, Kind.UNCACHED}),
    output_tokens=frozenset({Kind.TOKENS, Kind.OUTPUT}),
)


def fields_of(accounts: Iterable[Book], now_s: float, *, anthropic: bool) -> Fields:
    """The headers of limit, remaining and reset, for the tightest account; empty where no limit is per minute."""
    meters = [meter for account in accounts for meter in account.meters.values()]
    for meter in meters:
        meter.advance(now_s)
    if anthropic:
        return _fields(meters, ANTHROPIC, lambda seconds: show_moment(now_s + seconds), now_s)
    return _fields(meters, OPENAI, show_span, now_s)


def _fields(meters: Sequence[Meter], names: HeaderNames, show: Callable[[float], str], now_s: float) -> Fields:
    fields: list[tuple[str, str]] = []
    for (limit, remaining, reset), kinds in names:
        counted = [meter for meter in meters if meter.kind in kinds]
        if counted:
            left, tightest = min([(meter.remaining, meter) for meter in counted], key=itemgetter(0))
            resets_in_s = tightest.frees_in_s(tightest.memory.used, now_s)
            fields += (limit, f"{tightest.limit:.0f}"), (remaining, f"{int(left)}"), (reset, show(resets_in_s))
    return tuple(fields)


def show_span(seconds: float) -> str:
    """Seconds as OpenAI formats them: `6ms`, `1.5s`, `1m0.052s`, `2h3m0s`."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    if seconds < 59.999:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{shown}s"


def show_moment(at_s: float) -> str:
    """A time in seconds since the epoch as Anthropic formats it: RFC 3339, UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_wait(seconds: float) -> str:
    """A wait in whole seconds as in `retry-after`; below one second in milliseconds as in `retry-after-ms`."""
    return f"{ceil(seconds)} s" if seconds >= 1.0 else f"{ceil(seconds * 1000)} ms"


_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def show_period(seconds: float) -> str:
    """A period as it reads after "per": `day`, `2 weeks`, `90 seconds`."""
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds % length == 0), _UNITS[-1])
    count = round(seconds / length)
    return unit if count == 1 else f"{count} {unit}s"


REASONS: Mapping[Kind, Reason] = {
    Kind.REQUESTS: Reason.RATE_LIMITED_REQUESTS,
    Kind.TOKENS: Reason.RATE_LIMITED_TOKENS,
    Kind.INPUT: Reason.RATE_LIMITED_TOKENS,
    Kind.OUTPUT: Reason.RATE_LIMITED_TOKENS,
    Kind.UNCACHED: Reason.RATE_LIMITED_TOKENS,
    Kind.PARALLEL: Reason.TOO_MANY_PARALLEL,
    Kind.BUDGET: Reason.BUDGET_EXHAUSTED,
}

PHRASES: Mapping[Kind, str] = {
    Kind.REQUESTS: "a limit of {limit:g} requests per minute",
    Kind.TOKENS: "a limit of {limit:g} tokens per minute",
    Kind.INPUT: "a limit of {limit:g} input tokens per minute",
    Kind.OUTPUT: "a limit of {limit:g} output tokens per minute",
    Kind.UNCACHED: "a limit of {limit:g} uncached input tokens per minute",
    Kind.PARALLEL: "a limit of {limit:g} requests at a time",
    Kind.BUDGET: "a budget of {limit:g} per {period}, in the currency of the models' prices",
}

JITTER = 0.1
"""Share of the wait added at random, so that requests rejected together do not return together."""

MIN_WAIT_S = 0.05


class OverLimit(Refused):
    """Rejects a request that exceeds a limit. `lack`: the limit with the longest wait; `fields`: the headers."""

    def __init__(self, lacks: Sequence[Lack], fields: Fields, draw: float) -> None:
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


def _message(lack: Lack, wait_s: float) -> str:
    """The error message. `wait_s`: the wait that `retry-after` reports."""
    limit = f"`{lack.path}` has {PHRASES[lack.kind].format(limit=lack.limit, period=show_period(lack.period_s))}"
    if lack.wait_s == inf:
        return f"{limit}, and this request alone needs {lack.amount:g}: it can never be served."
    return f"{limit}, and not enough of it is left. Please try again in {show_wait(wait_s)}."
