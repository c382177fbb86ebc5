"""A lower bound of the mean lateness, relaxed so far that no placement can be below it; mostly far below the best."""

from __future__ import annotations

from heapq import heappop, heappush

from simulator.profile import Profile
from simulator.replay import engine_blocks
from simulator.traces import Trace


def lower_bound_s(trace: Trace, profile: Profile, engines: int) -> float:
    """Return a mean TTFT in seconds that no placement on `engines` engines can undercut.

    Each prompt is taken to find all that any earlier prompt shared with it, and decoding to cost nothing. Then the mean
    is at least that of the prefills alone, and at least that of one engine as fast as all together which always
    continues the prefill with the least left, the best order there is for one server.
    """
    own_s = _min_prefills_s(trace, profile)
    alone = sum(own_s) / len(own_s)
    pooled = _shortest_remaining_first([one.at_s for one in trace.arrivals], [size / engines for size in own_s])
    return max(alone, pooled / len(own_s))


def _min_prefills_s(trace: Trace, profile: Profile) -> list[float]:
    """Return the prefill seconds of each request with an endless cache and one step to itself."""
    size = profile.block_size
    known: set[int] = set()
    found: list[float] = []
    for arrival in trace.arrivals:
        chain = engine_blocks(arrival, trace.block_tokens or size, size)
        cached = 0
        while cached < min(len(chain), (arrival.prompt_tokens - 1) // size) and chain[cached] in known:
            cached += 1
        known.update(chain)
        start = cached * size
        found.append(profile.step_base_s + profile.prefill_s(start, arrival.prompt_tokens - start))
    return found


def _shortest_remaining_first(times_s: list[float], sizes_s: list[float]) -> float:
    """Return the sum of the times from arrival to completion on one preemptive server."""
    total = now_s = 0.0
    waiting: list[tuple[float, float]] = []
    for at_s, size_s in zip(times_s, sizes_s, strict=True):
        while waiting and now_s < at_s:
            left_s, arrived_s = heappop(waiting)
            served_s = min(left_s, at_s - now_s)
            now_s += served_s
            if served_s < left_s:
                heappush(waiting, (left_s - served_s, arrived_s))
            else:
                total += now_s - arrived_s
        now_s = max(now_s, at_s)
        heappush(waiting, (size_s, at_s))
    while waiting:
        left_s, arrived_s = heappop(waiting)
        now_s += left_s
        total += now_s - arrived_s
    return total
