"""The traffics whose best placement is searched for: two recordings and four generated ones, on eight alike engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from simulator.profile import Profile
from simulator.trace_formats import load_trace
from simulator.traces import Trace, gather_runs
from simulator.workload import AGENT, BLOCK_TOKENS, CHAT, TEAMS, LogNormal, Shape, generate

ENGINES = 8

PROFILE = Profile(prefill_tokens_per_s=12_000, step_base_s=0.012, kv_capacity_tokens=1_000_000, block_size=64)

SEARCH_BLOCK = 512
"""Tokens per block during the search: fewer blocks, the same order of placements. Results are played with `PROFILE`."""

DOCUMENTS = Shape(
    requests_per_s=5.0,
    turns=LogNormal(0.8, 2.0),
    pause_s=LogNormal(40, 120),
    system_tokens=LogNormal(9_000, 24_000),
    first_tokens=LogNormal(150, 600),
    message_tokens=LogNormal(100, 300),
    document_tokens=LogNormal(2_000, 6_000),
    document_share=0.1,
    answer_tokens=LogNormal(250, 600),
    assistants=400,
    max_prompt_tokens=64_000,
)
"""Questions about a common stock of documents, some far more popular than others, with short answers."""


def _recorded(name: str) -> Trace:
    return load_trace(Path(os.environ.get("TRACES", "../shared/traces")) / name)


def _generated(shape: Shape, rate: float, requests: int, seed: int, name: str) -> Trace:
    trace = generate(replace(shape, requests_per_s=rate), requests, seed=seed, name=name)
    return _coarser(trace, PROFILE.block_size // BLOCK_TOKENS)


def _coarser(trace: Trace, factor: int) -> Trace:
    """The same generated prompts in blocks as large as the engines': finer ones are not reused, and cost time.

    Generated ids count blocks from a prompt's beginning, so those of one larger block have one quotient.
    """
    arrivals = (
        replace(one, runs=gather_runs([block // factor for block in one.blocks[factor - 1 :: factor]]))
        for one in trace.arrivals
    )
    return replace(trace, arrivals=tuple(arrivals), block_tokens=BLOCK_TOKENS * factor)


TRAFFICS: Mapping[str, Callable[[], Trace]] = {
    "mooncake": partial(_recorded, "mooncake_conversation_trace.jsonl.gz"),
    "claude-code": partial(_recorded, "claudecode_dev.jsonl.gz"),
    "chat": partial(_generated, CHAT, 3.4, 4_000, 11, "chat"),
    "agent": partial(_generated, AGENT, 1.6, 3_000, 12, "agent"),
    "teams": partial(_generated, TEAMS, 8.0, 6_000, 13, "teams"),
    "documents": partial(_generated, DOCUMENTS, 16.0, 6_000, 14, "documents"),
}
"""By name. A recording raises TraceFault or OSError where its file is missing."""
