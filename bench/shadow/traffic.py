"""Recorded traffic, scaled down with its engines: lengths, cache and speed by the same factor, so that seconds stay."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.profile import Profile
from simulator.trace_formats import load_trace
from simulator.traces import Arrival, Trace, make_trace

SCALE = 8
"""By how much prompts, answers, caches and prefill speed are smaller than recorded."""

JITTER_S = 3.0
"""Mooncake's arrivals are recorded in steps of 3 s."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A stretch of a recorded trace, and the pods that serve it."""

    name: str
    file: str
    first: int
    """Its first request."""
    requests: int
    speed: float
    """Its rate by the recorded one."""
    pods: int
    engine: Profile
    """Of the pods; the shadow does not know it."""
    jitter_s: float = 0.0

    def trace(self) -> Trace:
        """Return the requests, scaled. Raises TraceFault."""
        full = load_trace(Path(os.environ.get("TRACES", "../shared/traces")) / self.file)
        chosen = full.arrivals[self.first : self.first + self.requests]
        block = max((full.block_tokens or SCALE) // SCALE, 1)
        part = make_trace(self.name, [_scaled(one, block) for one in chosen], block)
        return part.jittered(self.jitter_s, seed=1).faster(self.speed)


def _scaled(one: Arrival, block_tokens: int) -> Arrival:
    """Blocks keep their ids: as many, each shorter."""
    tokens = max(one.prompt_tokens // SCALE, len(one.blocks) * block_tokens, 4)
    return replace(one, prompt_tokens=tokens, output_tokens=max(one.output_tokens // SCALE, 2))


TRAFFICS = (
    Traffic(
        "Mooncake conversation",
        "mooncake_conversation_trace.jsonl.gz",
        first=0,
        requests=600,
        speed=1.0,
        pods=4,
        engine=Profile(
            prefill_tokens_per_s=2_200,
            prefill_quadratic_tokens=9_000,
            step_base_s=0.021,
            step_per_sequence_s=0.000_6,
            kv_capacity_tokens=128_000,
            max_num_batched_tokens=1024,
        ),
        jitter_s=JITTER_S,
    ),
    Traffic(
        "Claude Code",
        "claudecode_dev.jsonl.gz",
        first=300,
        requests=400,
        speed=1.0,
        pods=4,
        engine=Profile(
            prefill_tokens_per_s=4_500,
            prefill_quadratic_tokens=20_000,
            step_base_s=0.1,
            step_per_sequence_s=0.002,
            kv_capacity_tokens=160_000,
            max_num_batched_tokens=2048,
        ),
    ),
)
