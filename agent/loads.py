"""Receives the load that engines report after each step, as UDP datagrams on loopback.

The sender is `packages/hearth-vllm-plugin`, possibly of another version: invalid datagrams are dropped and counted.
A datagram is a JSON object `{"port": 8000, "rank": 0, "running": 3, "waiting": 1, "kv_usage": 0.25}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from routing.pod_record import EngineLoad

MAX_ENGINES = 256
"""Per agent; more than a node can hold."""

STALE_S = 5.0
"""Age at which a load is dropped. An idle engine reports nothing; its last report was that it is idle."""

Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class LoadDatagram(Struct, frozen=True):
    """One datagram."""

    port: Annotated[int, Meta(ge=1, le=65_535)]
    """Port of the server's HTTP front end, which identifies it to the agent."""
    running: Count
    waiting: Count
    kv_usage: Annotated[float, Meta(ge=0, le=1)]
    rank: Annotated[int, Meta(ge=0, le=4095)] = 0


_DECODER = msgspec.json.Decoder(LoadDatagram)


class LoadListener(asyncio.DatagramProtocol):
    """One per agent. Calls `came` whenever a load differs from the last one of its engine."""

    def __init__(self, clock: Callable[[], float], on_change: Callable[[], None]) -> None:
        self.invalid = 0
        """Number of invalid datagrams."""
        self._clock = clock
        self._on_change = on_change
        self._last: dict[tuple[int, int], tuple[LoadDatagram, float]] = {}

    def datagram_received(self, data: bytes, addr: object) -> None:
        try:
            word = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.invalid += 1
            return
        engine = word.port, word.rank
        if engine not in self._last and len(self._last) >= MAX_ENGINES:
            self.invalid += 1
            return
        before = self._last.get(engine)
        self._last[engine] = word, self._clock()
        if before is None or before[0] != word:
            self._on_change()

    def loads_of(self, port: int) -> tuple[EngineLoad, ...]:
        """Return the last loads of the engines behind a port, by rank, without stale ones."""
        now_s = self._clock()
        held = sorted(
            (word.rank, word, now_s - at_s) for (source, _), (word, at_s) in self._last.items() if source == port
        )
        return tuple(
            EngineLoad(rank, word.running, word.waiting, word.kv_usage, round(age_s, 3))
            for rank, word, age_s in held
            if age_s < STALE_S
        )

    def forget(self, port: int) -> None:
        """Drop the loads of a server that is gone."""
        for engine in [engine for engine in self._last if engine[0] == port]:
            del self._last[engine]
