"""Receives what engines report of themselves, as UDP datagrams on loopback: load and counters, and settings.

The sender is `packages/hearth-vllm-plugin`, possibly of another version: invalid datagrams are dropped and counted.
A datagram of load is a JSON object `{"port": 8000, "rank": 0, "running": 3, "waiting": 1, "kv_usage": 0.25}`, with
`counters` and `fetching` where there are any; one of settings is `{"port": 8000, "rank": 0, "settings": {...}}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from routing.pod_record import EngineLoad, known_counters, known_stages
from routing.server_settings import OPTION_FORMS, permitted

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
    counters: dict[str, float] = {}
    """Sums since the engine started."""
    fetching: dict[str, int] = {}
    """Requests that wait for KV of another engine, by stage."""


class SettingsDatagram(Struct, frozen=True):
    """One datagram of settings."""

    port: Annotated[int, Meta(ge=1, le=65_535)]
    settings: dict[str, str]
    rank: Annotated[int, Meta(ge=0, le=4095)] = 0


_DECODER = msgspec.json.Decoder(LoadDatagram)
_SETTINGS_DECODER = msgspec.json.Decoder(SettingsDatagram)
_SETTINGS_KEY = b'"settings"'


class LoadListener(asyncio.DatagramProtocol):
    """One per agent. Calls `came` whenever a load differs from the last one of its engine."""

    def __init__(self, clock: Callable[[], float], on_change: Callable[[], None]) -> None:
        self.invalid = 0
        """Number of invalid datagrams."""
        self._clock = clock
        self._on_change = on_change
        self._last: dict[tuple[int, int], tuple[LoadDatagram, float]] = {}
        self._settings: dict[int, dict[str, str]] = {}
        """By port, of rank 0: ranks are started alike."""

    def datagram_received(self, data: bytes, addr: object) -> None:
        try:
            if _SETTINGS_KEY in data:
                self._take_settings(_SETTINGS_DECODER.decode(data))
                return
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
        if before is None or _load_of(before[0]) != _load_of(word):
            self._on_change()

    def _take_settings(self, word: SettingsDatagram) -> None:
        if word.rank == 0 and (word.port in self._settings or len(self._settings) < MAX_ENGINES):
            self._settings[word.port] = permitted(word.settings.items(), OPTION_FORMS)

    def settings_of(self, port: int) -> Mapping[str, str]:
        """Return the settings that the server behind a port has in force, by option; empty if none were reported."""
        return self._settings.get(port, {})

    def loads_of(self, port: int) -> tuple[EngineLoad, ...]:
        """Return the last loads of the engines behind a port, by rank, without stale ones."""
        now_s = self._clock()
        held = sorted(
            (word.rank, word, now_s - at_s) for (source, _), (word, at_s) in self._last.items() if source == port
        )
        return tuple(
            EngineLoad(
                rank,
                word.running,
                word.waiting,
                word.kv_usage,
                round(age_s, 3),
                known_counters(word.counters),
                known_stages(word.fetching),
            )
            for rank, word, age_s in held
            if age_s < STALE_S
        )

    def forget(self, port: int) -> None:
        """Drop the loads of a server that is gone."""
        self._settings.pop(port, None)
        for engine in [engine for engine in self._last if engine[0] == port]:
            del self._last[engine]


def _load_of(word: LoadDatagram) -> tuple[int, int, float]:
    """Return what is published at once when it changes; counters travel with it."""
    return word.running, word.waiting, word.kv_usage
