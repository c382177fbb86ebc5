"""Looks at every gateway once a second while a run goes on: what must hold at any moment, and what it took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.cast import Cast, Gateway
from tests.chaos.programs import pause
from tests.chaos.readings import Reading, read_metrics

EVERY_S = 1.0

MOST_RESIDENT = 320 << 20
"""Bytes of a gateway under the few requests of a run: its three processes begin with some 170 MB."""

FDS_OF_ITS_OWN = 128

FDS_A_REQUEST = 4
"""Its client's connection, its pod's, one that was given up and one that is tried instead."""


@dataclass(slots=True)
class Most:
    """The most that any gateway took."""

    resident_bytes: float = 0.0
    fds: float = 0.0
    open_requests: float = 0.0
    readings: int = 0


@dataclass(slots=True)
class Watching:
    """`suffering` names whoever need not answer now."""

    cast: Cast
    suffering: Callable[[], set[str]]
    faults: dict[str, str] = field(default_factory=dict)
    """The first of each sort."""
    most: Most = field(default_factory=Most)
    unreleased: set[str] = field(default_factory=set)
    """Gateways whose last reading had more sequences than requests: a request that was just cancelled is released in
    the next tick, so that one reading may see it.
    """

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.gather(*map(self._look, self.cast.gateways))
            await pause(EVERY_S)

    async def _look(self, gateway: Gateway) -> None:
        before = gateway.name in self.suffering()
        reading = await read_metrics(self.cast.session, gateway.metrics)
        if reading is not None:
            self._judge(gateway.name, reading)
        elif not before and gateway.name not in self.suffering():
            self._fault(gateway.name, "answer", "did not answer on its metrics port")

    def _judge(self, name: str, reading: Reading) -> None:
        most, is_open = self.most, reading.sum_of("hearth_requests_in_flight")
        fds, resident = reading.sum_of("process_open_fds"), reading.sum_of("process_resident_memory_bytes")
        most.readings += 1
        most.fds, most.resident_bytes = max(most.fds, fds), max(most.resident_bytes, resident)
        most.open_requests = max(most.open_requests, is_open)
        running = reading.sum_of("hearth_engine_running_requests")
        for words in reading.negative:
            self._fault(name, words.split("{")[0], words)
        if running <= 2 * is_open:  # Twice, where one is sent to a second pod as well.
            self.unreleased.discard(name)
        elif name in self.unreleased:
            self._fault(name, "running", f"{running:g} sequences on engines for {is_open:g} requests")
        else:
            self.unreleased.add(name)
        if fds > FDS_OF_ITS_OWN + FDS_A_REQUEST * (is_open + reading.sum_of("hearth_downstream_connections")):
            self._fault(name, "fds", f"{fds:g} file descriptors for {is_open:g} requests")
        if resident > MOST_RESIDENT:
            self._fault(name, "resident", f"{resident / (1 << 20):.0f} MB")

    def _fault(self, name: str, sort: str, words: str) -> None:
        self.faults.setdefault(f"{name} {sort}", f"{name}: {words}")
