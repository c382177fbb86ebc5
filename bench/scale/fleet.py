"""A fleet in virtual time: a queue by priority in front of engines that prefill one request at a time and decode all.

Not the production simulator: hours of it would take hours. What is modelled: each request's own arrival and size; the
gateway's admission (a request that cannot keep its TTFT behind the work ahead of it is rejected, a miss); an engine's
time, shared between decode steps at the token pace that the strictest tier needs and prefill in what is left; token
pace from the number of running sequences; KV room; start-up, grants and drains of engines. What is not: prefix
placement, single batches (sequences are spread evenly), transfers. All scalers have the same gateway and fleet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

from bench.scale.traffic import SPEED, TIERS, Arrivals
from supply.load import TierObjective

TICK_S = 1.0
POLL_S = 30.0
WINDOW_S = 60.0
DRAIN_S = 20.0
"""For which an engine that is removed is still paid."""
KV_USE = 0.95


@dataclass(slots=True)
class TierWindow:
    """Sums of one poll interval, of one tier."""

    requests: int = 0
    prefill: float = 0.0
    output: float = 0.0
    rejected_requests: int = 0
    rejected_prefill: float = 0.0
    rejected_output: float = 0.0
    met: int = 0
    finished: int = 0


@dataclass(slots=True)
class Observed:
    """What a scaler may see."""

    now_s: float
    ready: int
    starting: int
    requested: int
    oldest_start_s: float
    busy_share: float
    """Of the engines' time, over the last interval: what HPA is given as use."""
    running: float
    waiting: int
    queued: tuple[tuple[int, float, float], ...]
    """By tier: requests, prefill tokens, output tokens."""
    windows: Sequence[Sequence[TierWindow]]
    """The last intervals, oldest first, by tier."""
    raw_rejections: int
    """Of the last interval, retries counted each time."""
    start_s: float
    """Learned start-up time."""


class Scaler(Protocol):
    """Decides how many engines to request of the cluster."""

    name: str

    def wanted(self, observed: Observed) -> int:
        """Return the engines that the cluster shall have."""
        ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """What starts engines."""

    start_s: float
    estimate_s: float
    """What the scaler believes before it has seen a start."""
    max_engines: int = 60
    granted: Callable[[float], int] | None = None
    """Engines that the cluster grants at a time; None: all."""


@dataclass(slots=True)
class Played:
    """Results of one run."""

    met: int = 0
    offered: int = 0
    engine_hours: float = 0.0
    peak: int = 0
    max_wanted: int = 0
    misses: list[int] = field(default_factory=list)
    """By slot of `SLOT_S` of the arrival."""
    counts: list[int] = field(default_factory=list)
    """Ready engines at each poll."""
    by_tier: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in TIERS])
    changes: int = 0
    late: list[int] = field(default_factory=lambda: [0, 0])
    """Served requests that missed their TPOT, and their TTFT; all other misses were rejected."""

    @property
    def attainment(self) -> float:
        """Share of the offered requests that kept both objectives of their tier."""
        return self.met / self.offered if self.offered else 1.0


SLOT_S = 300.0


def play(  # noqa: C901, PLR0912, PLR0915 - one loop over time; its parts share a dozen local values
    arrivals: Arrivals,
    seconds: float,
    cluster: Cluster,
    scaler: Scaler,
    initial: int,
    loop: Callable[[float], int] | None = None,
    tiers: Sequence[TierObjective] = TIERS,
) -> Played:
    """Play the arrivals. `loop` is the retries per second of a looping tenant, which are all rejected by its limits."""
    played = Played(offered=len(arrivals), misses=[0] * (int(seconds // SLOT_S) + 1))
    vl, tick = SPEED.prefill_tokens_per_s, TICK_S
    pace_bound = 0.95 * min(tier.tpot_s for tier in tiers)
    at_list, tier_list, prefill_list, output_list = arrivals.at, arrivals.tier, arrivals.prefill, arrivals.output
    count, cursor = len(arrivals), 0
    ready, starts = initial, deque[float]()
    pending = 0  # requested, not granted
    requested_s = deque[float]()
    draining = deque[float]()
    free = [0.0] * ready
    queues: list[deque[int]] = [deque() for _ in tiers]
    queued_tokens = [0.0] * len(tiers)
    prefilling: list[tuple[float, int]] = []
    running: list[tuple[float, int, float]] = []
    context = 0.0
    clock = 0.0  # tokens that a sequence has got since the start
    pace_s, share = SPEED.step_base_s, 1.0
    known_start = cluster.estimate_s
    windows: deque[list[TierWindow]] = deque([[TierWindow() for _ in tiers]], maxlen=int(WINDOW_S // POLL_S) + 1)
    busy_s = poll_busy_s = 0.0
    loop_hits = 0.0
    now, next_poll = 0.0, 0.0
    met_at = [False] * count

    def miss(index: int) -> None:
        played.misses[int(at_list[index] // SLOT_S)] += 1

    def begin(index: int, at: float) -> None:
        nonlocal busy_s, context
        tier = tier_list[index]
        cost = prefill_list[index] / (vl * share)
        done = at + cost
        heappush(free, done)
        busy_s += cost
        objective = tiers[tier]
        own = prefill_list[index] / vl
        met_at[index] = done - at_list[index] <= objective.ttft_s + objective.ttft_uncached_factor * own
        context += prefill_list[index] + output_list[index] / 2
        heappush(prefilling, (done, index))

    while now < seconds:
        until = now + tick
        while starts and starts[0] <= now:
            starts.popleft()
            known_start = cluster.start_s
            ready += 1
            heappush(free, now)
        while draining and draining[0] <= now:
            draining.popleft()
        sequences = len(running)
        room = ready * SPEED.max_sequences
        # engine time: decode at the pace that the strictest tier needs, prefill in the rest
        if ready:
            batch = sequences / ready
            step_s = SPEED.step_s(batch, context / sequences if sequences else 0.0)
            decoding = min(step_s / pace_bound, 0.95) if sequences else 0.0
            share = 1 - decoding
            used = min(busy_s / (ready * tick), 1.0)
            slow_s = step_s / max(decoding, 0.05) if sequences else step_s
            pace_s = used * max(slow_s, step_s) + (1 - used) * step_s
            poll_busy_s += (used + (1 - used) * decoding) * tick
        kv_bound = KV_USE * SPEED.kv_capacity_tokens * ready
        busy_s = max(busy_s - ready * tick, 0.0)
        while True:
            arriving = at_list[cursor] if cursor < count else 1e18
            at = min(arriving, until)
            # waiting requests begin on engines that become free before the next arrival
            while ready and free and free[0] <= at and len(running) + len(prefilling) < room and context < kv_bound:
                line = next((one for one in range(len(tiers)) if queues[one]), None)
                if line is None:
                    break
                index = queues[line].popleft()
                queued_tokens[line] -= prefill_list[index]
                begin(index, max(heappop(free), at_list[index], now))
            if arriving >= until:
                break
            index, tier = cursor, tier_list[cursor]
            cursor += 1
            window = windows[-1][tier]
            window.requests += 1
            window.prefill += prefill_list[index]
            window.output += output_list[index]
            objective, own = tiers[tier], prefill_list[index] / vl
            slack = objective.ttft_s + objective.ttft_uncached_factor * own
            ahead = sum(queued_tokens[: tier + 1]) / (vl * share * max(ready, 1))
            first = max(free[0] - arriving, 0.0) if free else 60.0
            if ready and (ahead + first) + own / share <= slack:
                queues[tier].append(index)
                queued_tokens[tier] += prefill_list[index]
            else:
                miss(index)
                window.rejected_requests += 1
                window.rejected_prefill += prefill_list[index]
                window.rejected_output += output_list[index]
        while prefilling and prefilling[0][0] < until:
            done, index = heappop(prefilling)
            heappush(running, (clock + max(done - now, 0.0) / pace_s + output_list[index], index, done))
        ended = clock + tick / pace_s
        while running and running[0][0] <= ended:
            target, index, done = heappop(running)
            tier = tier_list[index]
            context -= prefill_list[index] + output_list[index] / 2
            window = windows[-1][tier]
            window.finished += 1
            taken_s = now + (target - clock) * pace_s - done
            if met_at[index] and taken_s <= output_list[index] * tiers[tier].tpot_s:
                window.met += 1
                played.met += 1
                played.by_tier[tier][0] += 1
            else:
                miss(index)
                played.late[0 if met_at[index] else 1] += 1
        clock = ended
        if loop is not None:
            loop_hits += loop(now) * tick
        played.engine_hours += (ready + len(starts) + len(draining)) * tick / 3_600
        now = until
        if now >= next_poll:
            next_poll += POLL_S
            oldest = (
                now - min(starts[0] - cluster.start_s, *requested_s)
                if starts and requested_s
                else (now - (starts[0] - cluster.start_s) if starts else (now - requested_s[0] if requested_s else 0.0))
            )
            observed = Observed(
                now,
                ready,
                len(starts),
                ready + len(starts) + pending,
                oldest,
                poll_busy_s / POLL_S,
                float(len(running)),
                sum(map(len, queues)),
                tuple((len(line), queued_tokens[at], 250.0 * len(line)) for at, line in enumerate(queues)),
                list(windows)[-int(WINDOW_S // POLL_S) :],
                int(loop_hits) + sum(one.rejected_requests for one in windows[-1]),
                known_start,
            )
            wanted = min(max(scaler.wanted(observed), 0), cluster.max_engines)
            played.max_wanted = max(played.max_wanted, wanted)
            poll_busy_s, loop_hits = 0.0, 0.0
            windows.append([TierWindow() for _ in tiers])
            have = ready + len(starts)
            bound = cluster.granted(now) if cluster.granted else cluster.max_engines
            if wanted != have + pending:
                played.changes += 1
            allowed = min(wanted, max(bound, have))
            if allowed > have:
                starts.extend([now + cluster.start_s] * (allowed - have))
            for _ in range(have - wanted):
                if starts:
                    starts.pop()
                elif ready:
                    ready -= 1
                    heappop(free)
                    heapify(free)
                    draining.append(now + DRAIN_S)
            short = max(wanted - max(allowed, have), 0)
            while len(requested_s) > short:
                requested_s.pop()
            requested_s.extend([now] * (short - len(requested_s)))
            pending = short
            played.counts.append(ready)
            played.peak = max(played.peak, ready)
    for index in (*(one[1] for one in running), *(one[1] for one in prefilling)):  # in flight: met if begun in time
        if met_at[index]:
            played.met += 1
            played.by_tier[tier_list[index]][0] += 1
    waiting = sum(map(len, queues))
    played.offered -= waiting
    for tier in tier_list:
        played.by_tier[tier][1] += 1
    return played
