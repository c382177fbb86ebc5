"""How sure an engine was, as chat and responses spell it alike."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gateway.cascades.evidence import Token


class Ranked(Struct, gc=False):
    logprob: float = 0.0


class Entry(Struct, gc=False):
    logprob: float = 0.0
    top_logprobs: list[Ranked] | None = None


def of_entries(entries: Iterable[Entry]) -> list[Token]:
    """The tokens of these places."""
    return [(entry.logprob, tuple([top.logprob for top in entry.top_logprobs or ()])) for entry in entries]
