"""Words of the configuration about second attempts, and about silence: `retries` and `stalls`, with their schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from routing.retries import RetryTerms
from routing.stall_detection import Bounds
from tenancy.document import Table, not_negative, read_fields, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FRACTION, Kind, Word

NONE_OR_MORE = Kind(
    lambda value: whole(not_negative(value)),
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^([0-9]+|\$\{.*\})$"}]},
)

RETRIES: Mapping[str, Word] = {
    "attempts": Word("attempts", COUNT, "Pods, well till then, that may fail one request before its first byte."),
    "cuts": Word("cuts", NONE_OR_MORE, "How often one stream is gone on with elsewhere; 0: never."),
    "share": Word("share", FRACTION, "Second attempts for each request, in the long run."),
    "saved": Word("saved", NONE_OR_MORE, "Second attempts that may come at once after a time without."),
}
"""Fields of `RetryTerms`."""

STALLS: Mapping[str, str] = {
    "times": "A silence may be so many times as long as the longest of late.",
    "least_s": "No engine that falls silent altogether is given up sooner.",
    "least_alone_s": "Nor is one stream among others that flow.",
    "held_s": "For so long may an engine hold back what it makes: calls of tools, hidden thoughts.",
    "first_s": "The longest silence of an engine of which nothing is known yet.",
    "half_s": "Of listening, after which a silence counts for half as long.",
}
"""Fields of `Bounds`."""


def retries(root: Table) -> RetryTerms:
    """`retries: {WORD: VALUE}`; absent: the usual."""
    usual, given = RetryTerms(), root.table("retries")
    if given is None:
        return usual
    found = {word.field: given.get(name, word.kind.parse, getattr(usual, word.field)) for name, word in RETRIES.items()}
    given.close()
    return replace(usual, **found)


def stalls(root: Table) -> Bounds:
    """`stalls: {WORD: SECONDS}`; absent: the usual."""
    given = root.table("stalls")
    return Bounds() if given is None else read_fields(given, Bounds(), above_zero=True)


def retries_schema() -> Schema:
    """Of `retries`."""
    return table({name: described(word.kind.schema, word.help) for name, word in RETRIES.items()})


def stalls_schema() -> Schema:
    """Of `stalls`."""
    return table({name: described(ABOVE_ZERO.schema, words) for name, words in STALLS.items()})
