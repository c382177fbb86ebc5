"""What clients are told of their limits: headers in OpenAI's words or in Anthropic's, for the tightest account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from tenancy.limits.book import Book, Meter
from tenancy.limits.use import TOKEN_KINDS, Kind

Fields = tuple[tuple[str, str], ...]

OPENAI: tuple[tuple[str, frozenset[Kind]], ...] = (
    ("requests", frozenset({Kind.REQUESTS})),
    ("tokens", TOKEN_KINDS),
)

ANTHROPIC: tuple[tuple[str, frozenset[Kind]], ...] = (
    ("requests", frozenset({Kind.REQUESTS})),
    ("input-tokens", frozenset({Kind.TOKENS, Kind.INPUT, Kind.UNCACHED})),
    ("output-tokens", frozenset({Kind.TOKENS, Kind.OUTPUT})),
)


def fields_of(books: Iterable[Book], now_s: float, *, anthropic: bool) -> Fields:
    """Limit, what remains of it, and when all of it will be there again. Nothing where nothing is limited by minute."""
    meters = [meter for book in books for meter in book.meters.values()]
    for meter in meters:
        meter.memory.advance(now_s)
    if anthropic:
        return _fields(meters, ANTHROPIC, "anthropic-ratelimit-{1}-{0}", lambda s: show_moment(now_s + s), now_s)
    return _fields(meters, OPENAI, "x-ratelimit-{0}-{1}", show_span, now_s)


def _fields(
    meters: Sequence[Meter],
    words: Iterable[tuple[str, frozenset[Kind]]],
    name: str,
    show: Callable[[float], str],
    now_s: float,
) -> Fields:
    fields: list[tuple[str, str]] = []
    for word, kinds in words:
        counted = [meter for meter in meters if meter.kind in kinds]
        if counted:
            tightest = min(counted, key=lambda meter: meter.remaining)
            reset_s = tightest.memory.frees_in_s(tightest.memory.used, now_s)
            fields.append((name.format("limit", word), f"{tightest.limit:.0f}"))
            fields.append((name.format("remaining", word), f"{int(tightest.remaining)}"))
            fields.append((name.format("reset", word), show(reset_s)))
    return tuple(fields)


def show_span(seconds: float) -> str:
    """Seconds as OpenAI writes them: `6ms`, `1.5s`, `1m0.052s`, `2h3m0s`."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{shown}s"


def show_moment(at_s: float) -> str:
    """A moment as Anthropic writes it: RFC 3339, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
