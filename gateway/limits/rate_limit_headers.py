"""What clients are told of their limits: headers in OpenAI's words or in Anthropic's, for the tightest account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from math import ceil
from operator import itemgetter

from tenancy.limits.account_usage import Book, Meter
from tenancy.limits.usage import TOKEN_KINDS, Kind

Fields = tuple[tuple[str, str], ...]

Words = tuple[tuple[tuple[str, str, str], frozenset[Kind]], ...]
"""The headers of a limit, of what remains of it and of its reset; and which limits they tell of."""


def _words(name: str, **kinds: frozenset[Kind]) -> Words:
    told = ((word.replace("_", "-"), meant) for word, meant in kinds.items())
    return tuple(
        ((name.format("limit", word), name.format("remaining", word), name.format("reset", word)), meant)
        for word, meant in told
    )


OPENAI = _words("x-ratelimit-{0}-{1}", requests=frozenset({Kind.REQUESTS}), tokens=TOKEN_KINDS)

ANTHROPIC = _words(
    "anthropic-ratelimit-{1}-{0}",
    requests=frozenset({Kind.REQUESTS}),
    input_tokens=frozenset({Kind.TOKENS, Kind.INPUT, Kind.UNCACHED}),
    output_tokens=frozenset({Kind.TOKENS, Kind.OUTPUT}),
)


def fields_of(books: Iterable[Book], now_s: float, *, anthropic: bool) -> Fields:
    """Limit, what remains of it, and when all of it will be there again. Nothing where nothing is limited by minute."""
    meters = [meter for book in books for meter in book.meters.values()]
    for meter in meters:
        meter.advance(now_s)
    if anthropic:
        return _fields(meters, ANTHROPIC, lambda seconds: show_moment(now_s + seconds), now_s)
    return _fields(meters, OPENAI, show_span, now_s)


def _fields(meters: Sequence[Meter], words: Words, show: Callable[[float], str], now_s: float) -> Fields:
    fields: list[tuple[str, str]] = []
    for (limit, remaining, reset), kinds in words:
        counted = [meter for meter in meters if meter.kind in kinds]
        if counted:
            left, tightest = min([(meter.remaining, meter) for meter in counted], key=itemgetter(0))
            resets_in_s = tightest.frees_in_s(tightest.memory.used, now_s)
            fields += (limit, f"{tightest.limit:.0f}"), (remaining, f"{int(left)}"), (reset, show(resets_in_s))
    return tuple(fields)


def show_span(seconds: float) -> str:
    """Seconds as OpenAI writes them: `6ms`, `1.5s`, `1m0.052s`, `2h3m0s`."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    if seconds < 59.999:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{shown}s"


def show_moment(at_s: float) -> str:
    """A moment as Anthropic writes it: RFC 3339, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_wait(seconds: float) -> str:
    """A wait in the number that the header `retry-after` has, below a second in that of `retry-after-ms`."""
    return f"{ceil(seconds)} s" if seconds >= 1.0 else f"{ceil(seconds * 1000)} ms"


_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def show_period(seconds: float) -> str:
    """A period as one says it after "per": `day`, `2 weeks`, `90 seconds`."""
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds % length == 0), _UNITS[-1])
    count = round(seconds / length)
    return unit if count == 1 else f"{count} {unit}s"
