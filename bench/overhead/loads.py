"""The loads: what is sent, at what rate, and what one unit of it cost the gateway. One function a load.

Unary responses are requested in a closed loop, as fast as the gateway serves them, so that its wake-ups are shared by
many requests as they are on a busy day; and at a rate that saturates no process, where each request pays for its own.
Streams have a pace of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from bench.overhead.accounts import CpuBook, Memory, memory, ticks_s
from bench.overhead.bodies import Bodies
from bench.overhead.client import Asker, Call

CONNECTIONS = 64
LOOK_EVERY_S = 0.25
"""How often the books are looked at, so that little is lost of threads that end."""
SETTLE_S = 0.7
END_LIMIT_S = 15.0
SOAK_STREAMS_RATE = 20.0
SOAK_UNARY_RATE = 100.0
IDLE_AT_ONCE = 500
IDLE_RATE = 1_000
KEPT_UP_SHARE = 0.9
LONGER_THAN_ANY_S = 3_600
NEVER_ENDING_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of one unit."""

    us: float
    units: int
    by_ticks_us: float
    """The same by the kernel's coarse books."""
    faults: Sequence[str] = field(default=())
    with_ends_us: float = 0.0
    """Of a stream's event: with what its stream cost at its beginning and its end."""
    is_disturbed: bool = False
    """The machine did not keep up with the load: units that come in heaps cost less than they should."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds from asking to the first event, sorted."""

    seconds: Sequence[float]
    faults: Sequence[str] = field(default=())

    def at(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


class Window:
    """CPU of a process tree between two moments."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._book = CpuBook(pid)
        self._begin_s = self._book.used_s()
        self._begin_ticks_s = ticks_s(pid)

    async def stay(self, seconds: float) -> None:
        """Let time go by, and look at the books meanwhile."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while (left_s := end_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, LOOK_EVERY_S))
            self._book.used_s()

    def cost(self, units: int, faults: Sequence[str] = ()) -> Cost:
        used_s = self._book.used_s() - self._begin_s
        by_ticks_s = ticks_s(self._pid) - self._begin_ticks_s
        each = 1e6 / max(1, units)
        return Cost(used_s * each, units, by_ticks_s * each, faults)


async def saturated(port: int, pid: int, bodies: Bodies, connections: int, seconds: float) -> Cost:
    """CPU per unary response where every connection sends its next request as soon as it is answered."""
    asker = Asker((port,))
    await asker.connect(connections)
    asker.again = bodies
    for _ in range(connections):
        asker.ask(bodies.next(), bodies.tokens, is_stream=False)
    await asyncio.sleep(SETTLE_S)
    window, before = Window(pid), asker.ended
    await window.stay(seconds)
    cost = window.cost(asker.ended - before)
    asker.again = None
    await asker.all_ended(END_LIMIT_S)
    asker.close()
    return Cost(cost.us, cost.units, cost.by_ticks_us, asker.faults())


async def unary(port: int, pid: int, bodies: Bodies, rate: float, seconds: float) -> Cost:
    """CPU per whole answer at a steady rate."""
    asker = Asker((port,))
    await asker.connect(CONNECTIONS)
    await paced(asker, bodies, rate, min(1.0, seconds / 4))
    await asker.all_ended(END_LIMIT_S)
    warmed_up = len(asker.calls)
    window = Window(pid)
    begin_s = perf_counter()
    sender = asyncio.create_task(paced(asker, bodies, rate, seconds))
    await window.stay(seconds)
    await sender
    await asker.all_ended(END_LIMIT_S)
    is_late = perf_counter() - begin_s > seconds / KEPT_UP_SHARE + 0.1
    cost = window.cost(len(asker.calls) - warmed_up)
    asker.close()
    return Cost(cost.us, cost.units, cost.by_ticks_us, asker.faults(), is_disturbed=is_late)


async def streams(port: int, pid: int, count: int, pace_ms: int, seconds: float, *, size: int = 1_400) -> Cost:
    """CPU per event of streams that all flow: none begins or ends while it is measured. And over their whole lives."""
    tokens = int((2 * SETTLE_S + seconds) * 1000 / pace_ms) + 1
    bodies = Bodies(size, tokens=tokens, pace_ms=pace_ms, is_stream=True)
    asker = Asker((port,))
    await asker.connect(count)
    total = Window(pid)
    await paced(asker, bodies, count / SETTLE_S, SETTLE_S, max_requests=count)
    await asyncio.sleep(SETTLE_S / 2)
    window, before = Window(pid), _events(asker.calls)
    await window.stay(seconds)
    cost = window.cost(_events(asker.calls) - before)
    await asker.all_ended(END_LIMIT_S)
    with_ends = total.cost(_events(asker.calls))
    asker.close()
    is_late = cost.units < KEPT_UP_SHARE * count * seconds * 1000 / pace_ms
    return Cost(cost.us, cost.units, cost.by_ticks_us, asker.faults(), with_ends.us, is_late)


async def first_tokens(ports: tuple[int, ...], rate: float, seconds: float) -> FirstTokens:
    """Measure the first-token time of short streams at a steady rate, warm-up left out."""
    bodies = Bodies(1_400, tokens=8, pace_ms=2, is_stream=True)
    asker = Asker(ports)
    await asker.connect(CONNECTIONS // len(ports))
    await paced(asker, bodies, rate, seconds)
    await asker.all_ended(END_LIMIT_S)
    asker.close()
    measured = asker.calls[len(asker.calls) // 10 :]
    return FirstTokens(sorted((call.first_s or LONGER_THAN_ANY_S) - call.sent_s for call in measured), asker.faults())


async def idle_streams(port: int, pid: int, count: int) -> tuple[Memory, Memory, int]:
    """Memory before and with `count` streams open, each silent after its first token; and how many were opened."""
    asker = Asker((port,))
    await asker.connect(CONNECTIONS)
    await paced(asker, Bodies(1_400, tokens=4, is_stream=True), 200, 2.0)
    await asker.all_ended(END_LIMIT_S)
    before = memory(pid)
    bodies = Bodies(1_400, tokens=NEVER_ENDING_TOKENS, pace_ms=LONGER_THAN_ANY_S * 1000, is_stream=True)
    warmed_up = len(asker.calls)
    while (missing := count - len(asker.open)) > 0:
        some = min(missing, IDLE_AT_ONCE)
        await asker.connect(some)
        await paced(asker, bodies, IDLE_RATE, some / IDLE_RATE, max_requests=some)
    is_open = 0
    for _ in range(int(END_LIMIT_S)):
        await asyncio.sleep(1.0)
        is_open = sum(call.first_s is not None and call in asker.open for call in asker.calls[warmed_up:])
        if is_open == count:
            break
    with_streams = memory(pid)
    asker.close()
    return before, with_streams, is_open


async def mix(port: int, seconds: float) -> list[str]:
    """Streams and whole answers side by side, as on a working day. Returns what was wrong with them."""
    asker = Asker((port,))
    await asker.connect(CONNECTIONS)
    streamed = Bodies(1_400, tokens=250, pace_ms=10, is_stream=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(paced(asker, streamed, SOAK_STREAMS_RATE, seconds))
        group.create_task(paced(asker, Bodies(4_000, tokens=16, count=1_024), SOAK_UNARY_RATE, seconds))
    await asker.all_ended(END_LIMIT_S)
    asker.close()
    return asker.faults()


async def paced(asker: Asker, bodies: Bodies, rate: float, seconds: float, *, max_requests: int | None = None) -> None:
    """Ask at a rate, whatever becomes of it. Where no connection is free more are made."""
    loop = asyncio.get_running_loop()
    begin_s, sent = loop.time(), 0
    limit = int(rate * seconds) if max_requests is None else max_requests
    while sent < limit and (now_s := loop.time()) - begin_s < seconds * 4 + 1:
        while sent < min(limit, (now_s - begin_s) * rate):
            if asker.ask(bodies.next(), bodies.tokens, is_stream=bodies.is_stream) is None:
                await asker.connect(CONNECTIONS)
                continue
            sent += 1
        await asyncio.sleep(max(0.001, begin_s + (sent + 1) / rate - loop.time()))


def _events(calls: Sequence[Call]) -> int:
    return sum(call.events for call in calls)
