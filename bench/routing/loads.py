"""Which recorded requests are played, how fast, and onto what."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.profile import Profile
from simulator.trace_formats import load_trace
from simulator.traces import Trace

PODS = 8

JITTER_S = 0.2
"""By how much a seed moves an arrival at most: the order within a burst changes, the burst stays one."""

GROWING = Profile(prefill_tokens_per_s=12_000, step_base_s=0.012, kv_capacity_tokens=1_000_000)
"""Each of the pods, with prefill that slows down with context as attention does (see `Profile`)."""

CONSTANT = replace(GROWING, prefill_quadratic_tokens=1e12)
"""The same at 12,000 tokens/s whatever the context: the pods on which issue 4 measured what it wants of live runs."""

ENGINES = {"growing": GROWING, "constant": CONSTANT}

COARSE_BLOCK = 64
"""Tokens, in virtual time: both traces share in blocks of 512 tokens, finer ones cost time and change nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """One trace. `speed` and `requests` are those of the live runs; in virtual time it is played whole, as recorded."""

    name: str
    file: str
    speed: float
    requests: int
    hit_of_rival: float
    wait_of_rival: float
    p90_of_rival: float
    p99_of_rival: float
    """What is wanted live, as shares of the better rival's: hits, mean wait, and points of TTFT."""
    max_imbalance: float | None = None
    """Of the busiest pod's prefill by the mean; None: not judged."""
    within_slo_of_rival: float | None = None
    """Of the share of requests within the SLO; None: not judged."""

    def trace(self) -> Trace:
        """The whole recording. Raises TraceFault."""
        return load_trace(Path(os.environ.get("TRACES", "../shared/traces")) / self.file)

    def live_trace(self, seed: int, requests: int | None = None) -> Trace:
        """Its beginning at the live speed, jittered."""
        return self.trace().first(requests or self.requests).jittered(JITTER_S, seed).faster(self.speed)


LOADS = (
    Load(
        "Mooncake conversation",
        "mooncake_conversation_trace.jsonl.gz",
        speed=1.6,
        requests=1_500,
        hit_of_rival=0.97,
        wait_of_rival=0.3,
        p90_of_rival=0.6,
        p99_of_rival=0.75,
    ),
    Load(
        "Claude Code",
        "claudecode_dev.jsonl.gz",
        speed=1.0,
        requests=500,
        hit_of_rival=0.95,
        wait_of_rival=0.5,
        p90_of_rival=0.75,
        p99_of_rival=0.5,
        max_imbalance=1.25,
        within_slo_of_rival=1.05,
    ),
)
