"""The requests sent through Envoy, and what a unit of them cost Envoy and its picker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bench.overhead.bodies import Bodies
from bench.overhead.client import KEY, Asker
from bench.overhead.loads import END_LIMIT_S, SETTLE_S, Window, paced

SMALL_BYTES = 2_000
LARGE_BYTES = 220_000
CONNECTIONS = 32
CONCURRENT = 150
PACE_MS, PACED_TOKENS = 50, 20
CHUNK_STREAMS, CHUNK_PACE_MS = 50, 20

LOOPBACK = "127.0.0.1"
LAST_CHUNK = b"0\r\n\r\n"
HEAD_QUESTION = (
    b"GET /v1/models HTTP/1.1\r\nhost: bench\r\nuser-agent: bench/1\r\naccept: */*\r\nauthorization: Bearer %b\r\n\r\n"
    % KEY
)

Pids = Mapping[str, int]
"""Whose CPU is counted, by the part it plays: `envoy`, `picker`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of one unit in microseconds by part, how many units there were, and what was wrong with answers."""

    us: Mapping[str, float]
    units: int
    faults: Sequence[str]


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds to first tokens, sorted, of how many requests, those left out at the beginning included."""

    seconds: Sequence[float]
    count: int
    faults: Sequence[str]

    def at(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))] if self.seconds else 0.0


class Windows:
    """CPU of several processes between two moments."""

    def __init__(self, pids: Pids) -> None:
        self._windows = {part: Window(pid) for part, pid in pids.items()}

    async def stay(self, seconds: float) -> None:
        await asyncio.gather(*(window.stay(seconds) for window in self._windows.values()))

    def cost(self, units: int, faults: Sequence[str]) -> Cost:
        return Cost({part: window.cost(units).us for part, window in self._windows.items()}, units, faults)


async def unary_responses(port: int, pids: Pids, bodies: Bodies, seconds: float) -> Cost:
    """Each connection sends its next request as soon as it is answered."""
    asker = Asker((port,))
    await asker.connect(CONNECTIONS)
    asker.again = bodies
    for _ in range(CONNECTIONS):
        asker.ask(bodies.next(), bodies.tokens, is_stream=False)
    await asyncio.sleep(SETTLE_S)
    windows, before = Windows(pids), asker.ended
    await windows.stay(seconds)
    cost = windows.cost(asker.ended - before, ())
    asker.again = None
    await asker.all_ended(END_LIMIT_S)
    asker.close()
    return Cost(cost.us, cost.units, asker.faults())


async def chunks(port: int, pids: Pids, seconds: float) -> Cost:
    """CPU per event of streams that all flow: none begins or ends while it is measured."""
    tokens = int((2 * SETTLE_S + seconds) * 1000 / CHUNK_PACE_MS) + 1
    bodies = Bodies(SMALL_BYTES, tokens=tokens, pace_ms=CHUNK_PACE_MS, is_stream=True)
    asker = Asker((port,))
    await asker.connect(CHUNK_STREAMS)
    await paced(asker, bodies, CHUNK_STREAMS / SETTLE_S, SETTLE_S, max_requests=CHUNK_STREAMS)
    await asyncio.sleep(SETTLE_S / 2)
    windows, before = Windows(pids), sum(call.events for call in asker.calls)
    await windows.stay(seconds)
    cost = windows.cost(sum(call.events for call in asker.calls) - before, ())
    await asker.all_ended(END_LIMIT_S)
    asker.close()
    return Cost(cost.us, cost.units, asker.faults())


async def large_prompts(port: int, bodies: Bodies, seconds: float) -> Waits:
    """Measure the first tokens of long prompts in parallel: streams of a second, each followed by the next one."""
    asker = Asker((port,))
    await asker.connect(CONCURRENT)
    rate = CONCURRENT / (PACED_TOKENS * PACE_MS / 1000)
    await paced(asker, bodies, rate, seconds)
    await asker.all_ended(END_LIMIT_S * 4)
    asker.close()
    measured = asker.calls[len(asker.calls) // 5 :]
    firsts = sorted(call.first_s - call.sent_s for call in measured if call.first_s is not None)
    return Waits(firsts, len(asker.calls), asker.faults())


async def heads(port: int, pids: Pids, seconds: float) -> Cost:
    """Requests without a body, each asked as soon as the one before it on its connection is answered."""
    loop, counts, faults = asyncio.get_running_loop(), Counter[bool](), list[str]()
    made = [await loop.create_connection(lambda: HeadAsker(counts, faults), LOOPBACK, port) for _ in range(CONNECTIONS)]
    await asyncio.sleep(SETTLE_S)
    windows, before = Windows(pids), counts[True]
    await windows.stay(seconds)
    cost = windows.cost(counts[True] - before, faults)
    for transport, _ in made:
        transport.abort()
    return cost


class HeadAsker(asyncio.Protocol):
    """One connection that asks for the list of models over and over."""

    def __init__(self, counts: Counter[bool], faults: list[str]) -> None:
        self._counts = counts
        self._faults = faults
        self._read = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(HEAD_QUESTION)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._read.endswith((b"}", LAST_CHUNK)):
            return
        self._counts[True] += 1
        if not self._read.startswith(b"HTTP/1.1 200") or b'"mock"' not in self._read:
            self._faults.append(self._read[:200].decode("latin-1"))
        self._read = b""
        self._transport.write(HEAD_QUESTION)


def large_bodies() -> Bodies:
    """Long prompts with a shared beginning, as a coding agent's are."""
    return Bodies(LARGE_BYTES, tokens=PACED_TOKENS, pace_ms=PACE_MS, is_stream=True, count=48)
