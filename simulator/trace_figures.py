"""What a trace is like, in the figures by which traces are published: lengths, rate, turns, reuse."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from simulator.spread import Spread, spread_of
from simulator.traces import Trace


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """`reuse` is the share of prompt tokens that a cache of infinite size would have, full blocks only."""

    requests: int
    rate_per_s: float
    prompt_tokens: Spread
    output_tokens: Spread
    turns: Spread
    reuse: float


def trace_figures(trace: Trace) -> TraceFigures:
    """Measure a trace."""
    sessions = Counter(one.session for one in trace.arrivals if one.session is not None)
    return TraceFigures(
        requests=len(trace.arrivals),
        rate_per_s=len(trace.arrivals) / trace.length_s if trace.length_s else 0.0,
        prompt_tokens=spread_of([one.prompt_tokens for one in trace.arrivals]),
        output_tokens=spread_of([one.output_tokens for one in trace.arrivals]),
        turns=spread_of(sessions.values()),
        reuse=_reuse(trace),
    )


def _reuse(trace: Trace) -> float:
    counted: set[int] = set()
    warm = 0
    for one in trace.arrivals:
        blocks = one.blocks
        # Ids are chained: an engine that has a block has all before it.
        depth = bisect_left(blocks, True, key=lambda block: block not in counted)
        warm += depth
        counted.update(blocks[depth:])
    total = sum(one.prompt_tokens for one in trace.arrivals)
    return warm * (trace.block_tokens or 0) / total if total else 0.0
