"""Reads recorded traces, plain or gzipped, in the formats of their authors; says in which line a file is wrong.

Knows files and formats, nothing of what is done with a trace. The first line tells the format:

- `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}` a line: Mooncake, 512 tokens an id;
- a header `{"name", "block_size", "notes"}`, then `{"t": s, "s": session, "in": n, "out": n, "p": leading blocks equal
  to those of the session's request before, "h": further ids as [first, how many] runs}` a line: our own, full blocks;
  with "local per conversation" in its notes each conversation has a clock and ids of its own;
- `{"timestamp": us, "input": text, "output": text, "session_id": id}` a line: LMCache, whole prompts;
- `{"schema", "run", ..., "prompt_bytes", "blocks"}` a line: a gateway's route log (`gateway/observe/route_log.py`);
- `TIMESTAMP,ContextTokens,GeneratedTokens`: Azure, which does not say what was shared.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from simulator.route_log import ROUTE_SCHEMA, RouteHeader, RouteRow, trace_of_routes
from simulator.traces import Arrival, Runs, Trace, count_runs, cut_runs, gather_runs, make_trace

MOONCAKE_BLOCK_TOKENS = 512

CHARACTERS_PER_TOKEN = 4
"""What a token of recorded text is taken to be."""

TEXT_BLOCK_TOKENS = 16

SPREAD_S = 3600.0
"""Conversations recorded each by its own clock begin at random within this time."""

MAX_PAUSE_S = 300.0
"""A pause inside such a conversation is cut to this: who went home for the night says nothing about a cache."""

SOURCES = """\
  Mooncake      github.com/kvcache-ai/Mooncake           FAST25-release/traces
  Claude Code   github.com/callanjfox/kv-cache-tester    traces (written in the format of simulator/trace_formats.py)
  LMCache       github.com/LMCache/lmcache-agent-trace   magagent
  Azure         github.com/Azure/AzurePublicDataset      data, AzureLLMInferenceTrace"""


class TraceFault(ValueError):  # noqa: N818 - said to a person at a terminal
    """A trace cannot be read; the message says where and why."""


class MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class SharedHeader(msgspec.Struct):
    block_size: int
    name: str = "trace"
    notes: str = ""


class SharedRow(msgspec.Struct):
    t: float
    s: int | str
    p: int
    h: list[tuple[int, int]]
    out: int
    prompt: int = msgspec.field(name="in")


class TextRow(msgspec.Struct):
    timestamp: int
    input: str
    output: str
    session_id: str


R = TypeVar("R")
Lines = Iterator[tuple[int, str]]
"""Numbered from 1, without empty ones."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open trace file. `random` draws what a recording leaves open."""

    path: Path
    lines: Lines
    random: Random

    @property
    def name(self) -> str:
        return self.path.name.partition(".")[0]

    def rows(self, kind: type[R]) -> Iterator[tuple[int, R]]:
        """The remaining lines as JSON, numbered."""
        decoder = msgspec.json.Decoder(kind)
        for number, line in self.lines:
            try:
                yield number, decoder.decode(line)
            except msgspec.DecodeError as error:
                raise self.fault(number, str(error)) from error

    def fault(self, number: int, reason: str) -> TraceFault:
        return TraceFault(f"{self.path}:{number}: {reason}")


def load_trace(path: Path, *, seed: int = 0) -> Trace:
    """Read a trace in any of the formats. `seed` draws when conversations begin if that was not recorded."""
    with _opened(path, seed) as source:
        return _read(source)


def read_route_rows(path: Path) -> list[RouteRow]:
    """Return the lines of a gateway's route log. Raises `TraceFault` where it is something else."""
    with _opened(path, 0) as source:
        return list(_routes(source))


@contextmanager
def _opened(path: Path, seed: int) -> Iterator[Source]:
    found = find_trace(path)
    try:
        with (
            gzip.open(found, "rt", encoding="utf-8") if found.suffix == ".gz" else found.open(encoding="utf-8") as file
        ):
            numbered = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            yield Source(found, numbered, Random(seed))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceFault(f"{found}: {error}") from error


def find_trace(path: Path) -> Path:
    """The file, in the folder that TRACES names if not here. Raises `TraceFault` that says where to get one."""
    folder = os.environ.get("TRACES")
    tried = [path, Path(folder) / path] if folder else [path]
    for candidate in tried:
        if candidate.is_file():
            return candidate
    raise TraceFault(
        f"No trace at {' or '.join(map(str, tried))}. Traces are no part of Hearth; these are published, and "
        f"TRACES=FOLDER says where you keep them:\n{SOURCES}\nOr play `generated`, a workload that is made up."
    )


def _read(source: Source) -> Trace:
    number, first = next(source.lines, (1, ""))
    for mark, reader in READERS.items():
        if mark in first:
            return reader(replace(source, lines=chain([(number, first)], source.lines)))
    raise source.fault(number, f"no known format of a trace begins like this: {first[:80]!r}")


# --- One reader a format ----------------------------------------------------------------------------------------------


def read_mooncake(source: Source) -> Trace:
    """Read Mooncake's format. The last id of a prompt, possibly of a partial block, is left out."""
    block = MOONCAKE_BLOCK_TOKENS
    arrivals = [
        make_arrival(
            row.timestamp / 1000, row.input_length, row.output_length, None, row.hash_ids[: row.input_length // block]
        )
        for _, row in source.rows(MooncakeRow)
    ]
    return make_trace(source.name, arrivals, block)


@dataclass(slots=True)
class _Conversation:
    offset: int
    held: Runs = ()
    arrivals: list[Arrival] = field(default_factory=list)


def read_shared(source: Source) -> Trace:
    """Rows that say what they share with the row before them in their session."""
    _, header = next(source.rows(SharedHeader))
    is_local = "local per conversation" in header.notes
    conversations: dict[int | str, _Conversation] = {}
    for number, row in source.rows(SharedRow):
        one = conversations.setdefault(row.s, _Conversation(offset=len(conversations) << 32 if is_local else 0))
        if row.p > count_runs(one.held):
            raise source.fault(number, f"`p` is {row.p}, but the session's request before had {count_runs(one.held)}")
        one.held = cut_runs(one.held, row.p) + tuple((first + one.offset, count) for first, count in row.h)
        if count_runs(one.held) * header.block_size > row.prompt:
            raise source.fault(number, f"more blocks of {header.block_size} than fit into {row.prompt} tokens")
        one.arrivals.append(Arrival(row.t, max(row.prompt, 1), max(row.out, 1), str(row.s), one.held))
    recorded = [one.arrivals for one in conversations.values()]
    placed = _started_at_random(recorded, source.random) if is_local else recorded
    return make_trace(header.name, chain.from_iterable(placed), header.block_size)


def _started_at_random(conversations: Sequence[Sequence[Arrival]], random: Random) -> Iterator[list[Arrival]]:
    """Conversations on one clock, each begun at some time within the spread, with its pauses bounded."""
    for conversation in conversations:
        at_s, before_s = random.uniform(0.0, SPREAD_S), conversation[0].at_s
        placed = []
        for arrival in conversation:
            at_s += min(max(arrival.at_s - before_s, 0.0), MAX_PAUSE_S)
            before_s = arrival.at_s
            placed.append(replace(arrival, at_s=at_s))
        yield placed


def read_text(source: Source) -> Trace:
    """Prompts as text: blocks are equal stretches behind equal prefixes, tokens are characters by the dozen."""
    stretch = TEXT_BLOCK_TOKENS * CHARACTERS_PER_TOKEN
    ids: dict[tuple[int, str], int] = {}
    arrivals = []
    for _, row in source.rows(TextRow):
        parent, chained = -1, []
        for begin in range(0, len(row.input) - stretch + 1, stretch):
            parent = ids.setdefault((parent, row.input[begin : begin + stretch]), len(ids))
            chained.append(parent)
        prompt, answer = len(row.input) // CHARACTERS_PER_TOKEN, len(row.output) // CHARACTERS_PER_TOKEN
        arrivals.append(make_arrival(row.timestamp / 1e6, prompt, answer, row.session_id, chained))
    return make_trace(source.name, arrivals, TEXT_BLOCK_TOKENS)


def read_azure(source: Source) -> Trace:
    """Lengths and times only."""
    number, arrivals = 0, []

    def texts() -> Iterator[str]:
        nonlocal number
        for at, text in source.lines:
            number = at
            yield text

    try:
        for row in csv.DictReader(texts(), strict=True):
            at = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
            arrivals.append(make_arrival(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]), None, ()))
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise source.fault(number, f"{type(error).__name__}: {error}") from error
    return make_trace(source.name, arrivals, None)


def make_arrival(
    at_s: float, prompt_tokens: int, output_tokens: int, session: str | None, ids: Sequence[int]
) -> Arrival:
    """An arrival; an engine answers at least one token to at least one."""
    return Arrival(at_s, max(prompt_tokens, 1), max(output_tokens, 1), session, gather_runs(ids))


def read_routes(source: Source) -> Trace:
    """A gateway's own recording. Raises `TraceFault` for lines of another schema version."""
    return trace_of_routes(source.name, _routes(source))


def _routes(source: Source) -> Iterator[RouteRow]:
    header, row = msgspec.json.Decoder(RouteHeader), msgspec.json.Decoder(RouteRow)
    for number, line in source.lines:
        try:
            if (schema := header.decode(line).schema) != ROUTE_SCHEMA:
                reason = f"route log of schema {schema}; this version of Hearth reads schema {ROUTE_SCHEMA}"
                raise source.fault(number, reason)
            yield row.decode(line)
        except msgspec.DecodeError as error:
            raise source.fault(number, str(error)) from error


READERS: dict[str, Callable[[Source], Trace]] = {
    '"prompt_bytes"': read_routes,
    '"hash_ids"': read_mooncake,
    '"block_size"': read_shared,
    '"session_id"': read_text,
    "TIMESTAMP,ContextTokens": read_azure,
}
"""What is found in the first line of a file, and its reader."""
