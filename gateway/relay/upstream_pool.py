"""Connections to pods, kept alive between requests. The one used last is leased first, so that the others grow old and
are closed.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from gateway.config.limits import Timeouts
from gateway.http.timeout_sweeper import TimeoutSweeper
from gateway.pipeline.attempt import AttemptStatus
from gateway.relay.upstream_connection import POD_GONE, UpstreamConnection
from routing.stall_detection import StallBounds, StallDetector

MAX_IDLE_CONNECTIONS = 256
"""Idle connections kept per pod; those of a burst beyond it are closed when they fall idle."""

MAX_OPEN_CONNECTIONS = 8192
"""Connections per pod, busy ones included. An engine runs some hundreds of sequences: more would only queue there."""


@dataclass(frozen=True)
class UpstreamAddress:
    """The URL of a pod, split once."""

    url: str
    host: str
    port: int
    is_tls: bool
    base: str
    """Prefix of the path of every request, without a slash at its end."""

    @cached_property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_address(url: str) -> UpstreamAddress:
    """Split the URL of a pod."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return UpstreamAddress(
        url, parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/")
    )


OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the machine, has no file descriptor left."""


class PoolIsFull(Exception):  # noqa: N818 - like a rejection it is an outcome, not an error
    """No further connection to this pod is opened."""


def no_connection(url: str, error: PoolIsFull | OSError) -> tuple[AttemptStatus, str]:
    """Return how an attempt ends for which `UpstreamPool.connect` has raised this, and the detail for the log."""
    if isinstance(error, PoolIsFull):
        return AttemptStatus.UPSTREAM_BUSY, f"Connection limit to {url} reached."
    if isinstance(error, TimeoutError):
        return AttemptStatus.UNREACHABLE, f"Timeout while connecting to {url}."
    return AttemptStatus.UNREACHABLE, f"Cannot connect to {url}: {error.strerror or error}."


class UpstreamPool:
    """All connections of this process to all pods."""

    def __init__(self, timeouts: Timeouts, *, knows: Callable[[str], bool], max_open: int = sys.maxsize) -> None:
        """`knows`: whether the fleet has a pod at a URL; idle connections to others are closed. `max_open`: connections
        to all pods together, idle ones included; by default without a bound.
        """
        self._max_open = max_open
        self._open_count = 0
        self._sweeper = TimeoutSweeper[UpstreamConnection](
            timeouts.first_byte_s, timeouts.upstream_read_s, timeouts.upstream_idle_s
        )
        self.lateness = StallDetector(StallBounds(), timeouts.upstream_read_s)
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self._open: dict[str, set[UpstreamConnection]] = {}
        self._addresses: dict[str, UpstreamAddress] = {}
        self.timeouts = timeouts
        self.knows = knows

    def __repr__(self) -> str:
        return f"<UpstreamPool {self.open_count} open, {self.idle_count} idle>"

    def set_stall_bounds(self, silence: StallBounds) -> None:
        """Set how much silence of engines is tolerated; called before the first request."""
        self._sweeper.set_timeouts(silence.engine_min_s)
        self.lateness = StallDetector(silence, self.timeouts.upstream_read_s)

    def note_engine_response(self, engine: str, now_s: float) -> None:
        """Note that another gateway has had a response of this engine, at this loop time."""
        self.lateness.engine_alive(engine, now_s)

    @property
    def open_count(self) -> int:
        return self._open_count

    @property
    def idle_count(self) -> int:
        return sum(map(len, self._idle.values()))

    def address(self, url: str) -> UpstreamAddress:
        """Return the split URL of a pod; kept for as long as there are connections to it."""
        address = self._addresses.get(url)
        if address is None:
            address = self._addresses[url] = read_address(url)
        return address

    def lease_idle(self, url: str) -> UpstreamConnection | None:
        """Take an idle connection to this pod out of the pool, None where there is none."""
        idle = self._idle.get(url)
        while idle:
            line = idle.pop()
            if line.is_open:
                return line
        return None

    def release(self, line: UpstreamConnection) -> None:
        """Put an open connection that has become idle back; close it where there are enough."""
        idle = self._idle.setdefault(line.url, [])
        # The pod may have left the fleet: then nothing is sent there, and the sweeper closes it.
        if len(idle) < MAX_IDLE_CONNECTIONS:
            idle.append(line)
        else:
            line.abort()

    def forget(self, line: UpstreamConnection) -> None:
        """Drop a connection that is closed. Safe to call again."""
        self._sweeper.remove(line)
        lines = self._open.get(line.url)
        if lines is not None:
            if line in lines:
                lines.remove(line)
                self._open_count -= 1
            if not lines:
                del self._open[line.url]
                self._addresses.pop(line.url, None)
        idle = self._idle.get(line.url)
        if idle is not None:
            if line in idle:
                idle.remove(line)
            if not idle:
                del self._idle[line.url]

    def silence_s(self, url: str) -> float | None:
        """Return for how many seconds requests at a pod have waited without a byte of any response; None without any.

        A request that was sent later does not shorten it.
        """
        lines = self._open.get(url, ())
        waiting = [line.waiting_since_s for line in lines if line.waiting_since_s is not None]
        if not waiting:
            return None
        return self.loop.time() - max(min(waiting), *(line.last_heard_s() for line in lines))

    def fail_silent(self, url: str, silent_s: float, detail: str = POD_GONE) -> int:
        """Close the idle connections to a pod and those silent for so long. Returns how many requests were failed."""
        return sum(line.fail_if_silent(silent_s, detail) for line in tuple(self._open.get(url, ())))

    def close(self) -> None:
        """Close all connections at once."""
        for lines in tuple(self._open.values()):
            for line in tuple(lines):
                line.abort()
        self._sweeper.stop()

    async def connect(self, url: str) -> UpstreamConnection:
        """Open a connection for one request. Raises `OSError`, `TimeoutError` among it, or `PoolIsFull`."""
        address = self.address(url)
        if len(self._open.get(address.url, ())) >= MAX_OPEN_CONNECTIONS:
            raise PoolIsFull
        if self._open_count >= self._max_open and not self._close_an_idle():
            raise PoolIsFull
        line = UpstreamConnection(self, address.url)
        self._open.setdefault(address.url, set()).add(line)
        self._open_count += 1
        try:
            async with asyncio.timeout(self.timeouts.upstream_connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: line, address.host, address.port, ssl=self._tls if address.is_tls else None
                )
        except BaseException as failed:
            # Also where the client has disconnected: a connection still being opened is closed as soon as it is open.
            line.abort()
            self.forget(line)
            if isinstance(failed, OSError) and failed.errno in OUT_OF_DESCRIPTORS:
                raise PoolIsFull from None  # That is not a fault of the pod.
            raise
        self._sweeper.add(line)
        return line

    def _close_an_idle(self) -> bool:
        """Make room for a connection by closing an idle one. Returns whether there was one."""
        for idle in self._idle.values():
            if idle:
                line = idle[0]
                line.abort()
                self.forget(line)
                return True
        return False

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the pool, looked up once: `get_running_loop` is a system call (`getpid`)."""
        return asyncio.get_running_loop()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()
