"""How simulated pods come by each other's KV: one line of JSON each way over TCP, and the time it would have taken.

Stands in for NIXL's handshake and Mooncake's transfer engine. Uses names and sizes; independent of engines and HTTP.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from simulator.link import Link

MAX_LINE_BYTES = 4096


@dataclass(slots=True)
class Counts:
    """What became of transfers, for the metrics page. Seconds are engine seconds."""

    transfers: int = 0
    transfer_s: float = 0.0
    bytes_moved: float = 0.0
    expired: int = 0
    after_expiry: int = 0
    post_s: float = 0.0
    descriptors: int = 0
    failed: int = 0
    queued: int = 0
    """Transfers that wait for the link now."""


class SideChannel:
    """What one pod holds for others. Serves until it is closed."""

    def __init__(self, link: Link, time_scale: float, let_go: Callable[[str], None], *, waits: bool) -> None:
        """`let_go` frees what was held under a name; `waits`: an early request waits, as for Mooncake."""
        self.counts = Counts()
        self.is_stalled = False
        """A fault: requests stall."""
        self.port = 0
        self._link = link
        self._time_scale = time_scale
        self._let_go = let_go
        self._waits = waits
        self._leases: dict[str, asyncio.TimerHandle | None] = {}
        """None while it is being fetched: the fetching pod sends heartbeats."""
        self._changed = asyncio.Condition()
        self._wire = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_LINE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Cut all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()
        for lease in self._leases.values():
            if lease is not None:
                lease.cancel()
        self._leases.clear()

    def stop_listening(self) -> None:
        """Reject new connections; requests in flight stall."""
        self.is_stalled = True
        if self._server is not None:
            self._server.close()

    def hold(self, name: str, lease_s: float) -> None:
        """Offer the KV under this name for `lease_s` engine seconds."""
        self._leases[name] = asyncio.get_running_loop().call_later(lease_s / self._time_scale, self._expire, name)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _expire(self, name: str) -> None:
        self.counts.expired += 1
        self._free(name)

    def _free(self, name: str) -> None:
        lease = self._leases.pop(name, None)
        if lease is not None:
            lease.cancel()
        self._let_go(name)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            request = json.loads(await reader.readline())
            seconds = await self._fetch(str(request["name"]), int(request["tokens"]))
            writer.write(json.dumps({"seconds": seconds}).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, KeyError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _fetch(self, name: str, tokens: int) -> float:
        """Transfer the KV; that it is no longer held goes undetected, as in NIXL."""
        if self._waits:
            async with self._changed:
                await self._changed.wait_for(lambda: name in self._leases)
        lease = self._leases.get(name)
        if lease is not None:
            lease.cancel()
            self._leases[name] = None
        elif name not in self._leases:
            self.counts.after_expiry += 1
        if self.is_stalled:
            await asyncio.get_running_loop().create_future()
        seconds = await self._occupy(tokens)
        if name in self._leases:
            self._free(name)
        return seconds

    async def _occupy(self, tokens: int) -> float:
        wire_s = self._link.wire_s(tokens)
        async with self._wire:
            await asyncio.sleep(wire_s / self._time_scale)
        await asyncio.sleep(self._link.fixed_s / self._time_scale)
        counts = self.counts
        counts.transfers += 1
        counts.transfer_s += wire_s + self._link.fixed_s
        counts.post_s += self._link.fixed_s
        counts.bytes_moved += tokens * self._link.bytes_per_token
        counts.descriptors += self._link.descriptors(tokens)
        return wire_s + self._link.fixed_s


async def fetch(host: str, port: int, name: str, tokens: int) -> float:
    """Have another pod's KV brought over. The engine seconds it took. Raises OSError where that pod is not there (any
    more), ValueError where it says something strange.
    """
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
    try:
        writer.write(json.dumps({"name": name, "tokens": tokens}).encode() + b"\n")
        line = await reader.readline()
        if not line:
            raise ConnectionError("the other pod closed its side channel")
        return float(json.loads(line)["seconds"])
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
