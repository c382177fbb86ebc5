"""The traffic of the truth table: small enough for an engine on one core, each kind of load once.

Lengths are tokens, arrivals relative: `at_load` stretches them to a share of what the profiled engine sustains.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from simulator.trace_formats import TraceFault, load_trace
from simulator.traces import Arrival, Trace, gather_runs, make_trace
from simulator.workload import BLOCK_TOKENS, LogNormal, Shape, generate

MAX_PROMPT = 1_900
MAX_ANSWER = 200

Build = Callable[[int, int], Trace]
"""A trace of so many requests from a seed."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of traffic. `load` is the offered share of what the engine sustains; None: all requests come at once."""

    name: str
    build: Build
    load: float | None
    is_recorded: bool = False
    requests: int | None = None
    """How many where the time to play does not decide."""


SMALL_CHAT = Shape(
    requests_per_s=2.0,
    turns=LogNormal(3, 6),
    pause_s=LogNormal(6, 15),
    system_tokens=LogNormal(96, 97),
    first_tokens=LogNormal(120, 400),
    message_tokens=LogNormal(40, 100),
    document_tokens=LogNormal(300, 700),
    document_share=0.1,
    answer_tokens=LogNormal(40, 90),
    max_prompt_tokens=MAX_PROMPT,
    max_answer_tokens=MAX_ANSWER,
)

SMALL_AGENT = Shape(
    requests_per_s=1.0,
    turns=LogNormal(12, 25),
    pause_s=LogNormal(3, 9),
    system_tokens=LogNormal(320, 420),
    first_tokens=LogNormal(300, 700),
    message_tokens=LogNormal(50, 140),
    document_tokens=LogNormal(150, 300),
    document_share=0.1,
    answer_tokens=LogNormal(24, 60),
    rewrite_share=0.03,
    assistants=2,
    max_prompt_tokens=MAX_PROMPT,
    max_answer_tokens=MAX_ANSWER,
)

SMALL_TEAMS = Shape(
    requests_per_s=2.0,
    turns=LogNormal(2, 5),
    pause_s=LogNormal(4, 10),
    system_tokens=LogNormal(200, 600),
    first_tokens=LogNormal(100, 300),
    message_tokens=LogNormal(40, 120),
    document_tokens=LogNormal(200, 500),
    document_share=0.2,
    answer_tokens=LogNormal(30, 60),
    assistants=8,
    max_prompt_tokens=MAX_PROMPT,
    max_answer_tokens=MAX_ANSWER,
)

Range = tuple[int, int]


def _shaped(shape: Shape, requests: int, seed: int) -> Trace:
    return generate(shape, requests, seed=seed)


def _drawn(prompt: Range, answer: Range, requests: int, seed: int, *, burst: int = 1, prefix: int = 0) -> Trace:
    """Independent requests, `burst` at once, each burst a Poisson arrival.

    With `prefix` tokens each prompt begins like that of one in six others.
    """
    draw, at_s, ids = Random(seed), 0.0, count(1_000_000)
    arrivals = []
    for number in range(requests):
        if number % burst == 0:
            at_s += draw.expovariate(1.0 / burst)
        arrivals.append(_one(draw, at_s, prompt, answer, ids, prefix))
    return make_trace("drawn", arrivals, BLOCK_TOKENS)


def _one(draw: Random, at_s: float, prompt: Range, answer: Range, ids: Iterator[int], prefix: int) -> Arrival:
    tokens = prefix + draw.randint(*prompt)
    group, full = draw.randrange(6), tokens // BLOCK_TOKENS
    shared = prefix // BLOCK_TOKENS
    blocks = [*range(group * 1_000, group * 1_000 + shared), *(next(ids) for _ in range(full - shared))]
    return Arrival(at_s, tokens, draw.randint(*answer), None, gather_runs(blocks))


def _documents(requests: int, seed: int) -> Trace:
    """Questions about one of 24 documents of 600 tokens, more than the cache holds, some asked for more than others."""
    draw, at_s, ids = Random(seed), 0.0, count(1_000_000)
    arrivals, each = [], 600 // BLOCK_TOKENS
    for _ in range(requests):
        at_s += draw.expovariate(1.0)
        document = min(int(draw.paretovariate(0.7)) - 1, 23)
        tokens = each * BLOCK_TOKENS + draw.randint(20, 80)
        rest = tokens // BLOCK_TOKENS - each
        blocks = [*range(document * 1_000, document * 1_000 + each), *(next(ids) for _ in range(rest))]
        arrivals.append(Arrival(at_s, tokens, draw.randint(8, 40), None, gather_runs(blocks)))
    return make_trace("documents", arrivals, BLOCK_TOKENS)


def _mixed(parts: tuple[tuple[int, Build], ...], requests: int, seed: int) -> Trace:
    """Several kinds side by side, in these proportions, over the same time."""
    full, arrivals = sum(share for share, _ in parts), list[Arrival]()
    for number, (share, build) in enumerate(parts):
        trace = build(max(round(requests * share / full), 1), seed + number)
        length = trace.length_s or 1.0
        moved = (replace(one, at_s=one.at_s / length, runs=_apart(one, number)) for one in trace.arrivals)
        arrivals.extend(moved)
    return make_trace("mixed", arrivals, BLOCK_TOKENS)


def _apart(arrival: Arrival, number: int) -> tuple[tuple[int, int], ...]:
    """Ids that no other part has."""
    return tuple((first + (number << 48), length) for first, length in arrival.runs)


def _recorded(file: str, shrink: int, requests: int, seed: int) -> Trace:
    """A recorded trace with `shrink` times shorter prompts: of so many blocks the last one stands for all.

    Raises `TraceFault` where the file is not there.
    """
    trace = load_trace(Path(os.environ.get("TRACES", "../shared/traces")) / file, seed=seed)
    skip = min(50 * seed, max(len(trace.arrivals) - requests, 0))
    arrivals = trace.arrivals[skip : skip + requests]
    each = max(shrink * BLOCK_TOKENS // (trace.block_tokens or BLOCK_TOKENS), 1)
    fresh = count(1 << 50)
    small = []
    for one in arrivals:
        tokens = min(max(one.prompt_tokens // shrink, 4), MAX_PROMPT)
        full = tokens // BLOCK_TOKENS
        known = one.blocks[each - 1 :: each][:full] if trace.block_tokens else ()
        blocks = [*known, *(next(fresh) for _ in range(full - len(known)))]
        output = min(max(one.output_tokens // min(shrink, 8), 2), MAX_ANSWER)
        small.append(Arrival(one.at_s, tokens, output, None, gather_runs(blocks)))
    return make_trace(file, small, BLOCK_TOKENS)


CHAT = partial(_shaped, SMALL_CHAT)
LONG = partial(_drawn, (1_000, 1_800), (4, 16))
DECODING = partial(_drawn, (24, 96), (80, 180))
SHORT = partial(_drawn, (32, 256), (1, 6))

GENERATED = (
    Workload("chat", CHAT, 0.6),
    Workload("agent", partial(_shaped, SMALL_AGENT), 0.6),
    Workload("teams", partial(_shaped, SMALL_TEAMS), 0.7),
    Workload("long prompts", LONG, 0.5),
    Workload("shared prefixes", partial(_drawn, (16, 100), (16, 48), prefix=1_024), 0.6),
    Workload("decode-heavy", DECODING, 0.6),
    Workload("short", SHORT, 0.6),
    Workload("bursts", partial(_drawn, (60, 400), (16, 60), burst=10), 0.5),
    Workload("overload", CHAT, 1.5),
    Workload("documents", _documents, 0.6),
    Workload("mixture", partial(_mixed, ((1, LONG), (3, DECODING), (4, SHORT))), 0.6),
    Workload("crowded", partial(_drawn, (600, 800), (140, 200)), None, requests=24),
)

RECORDED = (
    Workload("Claude Code /256", partial(_recorded, "claudecode_dev.jsonl.gz", 256), 0.6, is_recorded=True),
    Workload("Mooncake /32", partial(_recorded, "mooncake_conversation_trace.jsonl.gz", 32), 0.6, is_recorded=True),
    Workload("Azure code /4", partial(_recorded, "azure2023_code.csv.gz", 4), 0.6, is_recorded=True),
)


def available() -> list[Workload]:
    """All generated ones, and those recorded ones whose file is there."""
    present = []
    for one in RECORDED:
        try:
            one.build(1, 0)
        except (TraceFault, OSError):
            continue
        present.append(one)
    return [*GENERATED, *present]


def at_load(trace: Trace, load: float | None, sustained_s: float) -> Trace:
    """The trace at a share of the rate at which the engine serves it in `sustained_s`; None: all at once."""
    if load is None:
        return replace(trace, arrivals=tuple(replace(one, at_s=0.0) for one in trace.arrivals))
    return trace.faster((trace.length_s or 1.0) * load / sustained_s)


def token_ids(arrival: Arrival, number: int, seed: int, ids: tuple[int, int] = (200, 1900)) -> list[int]:
    """A prompt for a real engine: equal blocks are equal tokens, what is behind the last full block is its own."""
    tokens: list[int] = []
    for block in arrival.blocks:
        draw = Random(block * 1_000_003 + seed)
        tokens.extend(draw.randint(*ids) for _ in range(BLOCK_TOKENS))
    draw = Random(f"{seed}-{number}")
    tokens.extend(draw.randint(*ids) for _ in range(arrival.prompt_tokens - len(tokens)))
    return tokens
