"""The picker's port closes while Envoys come in: who was let in is served or told to go elsewhere, nobody is reset."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
import uvloop

from gateway.ext_proc.access_log import AccessLog
from gateway.ext_proc.health import HealthService
from gateway.ext_proc.http2 import frames as f
from gateway.ext_proc.http2.frames import Http2Limits
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.ext_proc.echoing import ECHO, echoing
from tests.gateway.ext_proc.speaking import calling
from tests.gateway.kv_index.redis_servers import free_ports
from tests.gateway.running import Running, serving

KNOCKING = 40
CLIENTS = 6
PATIENCE_S = 120.0

HEALTH = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
LOG = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
STATUS = b"grpc-status"
ANSWERED = b"\0\0\0\0\4ping"


def question(path: str, message: bytes) -> bytes:
    """All that a client writes who connects and asks one thing."""
    fields = b"\x83\x86\x04" + bytes((len(path),)) + path.encode()
    reported = b"\0" + len(message).to_bytes(4, "big") + message
    requested = f.frame(f.HEADERS, f.END_HEADERS, 1, fields) + f.frame(f.DATA, f.END_STREAM, 1, reported)
    return f.PREFACE + f.settings_frame({}) + requested


def knock(where: tuple[str, int]) -> socket.socket:
    """A client that the kernel has let in and that has asked, while our loop was busy: with us."""
    client = socket.create_connection(where, timeout=60)
    client.sendall(question(ECHO, b"ping"))
    return client


def heard_by(client: socket.socket) -> bytes:
    received = b""
    while STATUS not in received and (piece := client.recv(1 << 16)):
        received += piece
    return received


async def all_are_served() -> None:
    loop = asyncio.get_running_loop()
    async with echoing() as port, AsyncExitStack() as stack:
        host, _, number = port.where.rpartition(":")
        leaving = loop.create_task(port.port.begin_drain())
        clients = [stack.enter_context(knock((host, int(number)))) for _ in range(KNOCKING)]
        for client in clients:
            received = await loop.run_in_executor(None, heard_by, client)
            assert ANSWERED in received
            assert STATUS in received
        await leaving
        with pytest.raises(OSError, match="refused"):
            await loop.run_in_executor(None, knock, (host, int(number)))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_was_let_in_is_served(loop_factory: type) -> None:
    """Forty have connected and asked before the loop could take one; who comes later is refused, not reset."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(all_are_served())


async def test_who_comes_to_a_port_that_is_left_is_served_and_requested_no_more() -> None:
    """A connection that was on its way when the others were told."""
    async with echoing() as port:
        port.port.is_leaving = True
        async with calling(port.where) as caller:
            while caller.goodbye is None:
                await caller.hear()
            assert caller.goodbye.last_stream_id == f.MAX_WINDOW


async def test_a_connection_that_is_left_is_ended_by_us_if_need_be() -> None:
    """A peer that stays though no stream is open: it is told the last stream, and then that it is over."""
    async with echoing(Http2Limits(preface_s=0.4)) as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"before", ends=True)
        assert await call.status() == "0"
        await port.port.begin_drain()
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            while piece := await caller.reader.read(1 << 16):
                received += piece
        assert f.goaway_frame(call.number, f.Http2ErrorCode.NONE) in received
        await port.port.wait_until_empty(PATIENCE_S)
        assert not port.port.connections


async def test_streams_that_never_end_by_themselves_do_not_hold_a_port_that_is_left() -> None:
    """Who watches our health is let go at once, an access log as soon as there is nothing that it could still tell."""
    under_way = {"a request"}
    log = AccessLog(lambda: bool(under_way))
    more = {**log.services(), **HealthService(lambda: True).services()}
    async with echoing(Http2Limits(preface_s=0.4), more=more) as port, calling(port.where) as caller:
        written, watched, work = [await caller.call(path) for path in (LOG, WATCH, ECHO)]
        for call in (written, watched, work):
            await call.log_event(b"")
        await work.message()
        await port.port.begin_drain()
        over = ends_told(caller.reader)
        assert await anext(over) == watched.number
        assert log.streams == 1
        under_way.clear()
        assert await anext(over) == written.number
        assert not log.streams
        caller.writer.write(f.frame(f.DATA, f.END_STREAM, work.number))
        assert [number async for number in over] == [work.number]


async def ends_told(reader: asyncio.StreamReader) -> AsyncIterator[int]:
    """The streams that come to an end, one by one, until the connection does; h2 hears none after a goodbye."""
    while head := await reader.read(f.HEAD_BYTES):
        head += await reader.readexactly(f.HEAD_BYTES - len(head))
        high, low, kind, flags, number = f.HEAD.unpack(head)
        await reader.readexactly(high << 8 | low)
        if kind == f.HEADERS and flags & f.END_STREAM:
            yield number


@dataclass
class Stream:
    """Connections without a pause, each of which asks how the picker is."""

    port: int
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_back: asyncio.Event = field(default_factory=asyncio.Event)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0
    rejected: int = 0
    lost: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while not self.over.is_set() and not self.lost:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionRefusedError:
                self.rejected += 1
                self.stirred.set()
                await self.is_back.wait()
                continue
            try:
                await self._ask(reader, writer)
            except OSError as error:
                self.lost.append(repr(error))
            finally:
                self.stirred.set()
                writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(question(HEALTH, b""))
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            while STATUS not in received and (piece := await reader.read(1 << 16)):
                received += piece
        if STATUS in received:
            self.served += 1
        else:
            self.lost.append(f"ended after {received!r}")

    async def goes_on(self) -> None:
        """Wait until some more have been served."""
        wanted = self.served + 5 * CLIENTS
        await self.until(lambda: self.served >= wanted)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so() and not self.lost:
                self.stirred.clear()
                await self.stirred.wait()


@asynccontextmanager
async def streaming(port: int) -> AsyncIterator[Stream]:
    stream = Stream(port)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(stream.run())
        try:
            yield stream
        finally:
            stream.over.set()
            stream.is_back.set()


@asynccontextmanager
async def a_picker(pod: str, port: int) -> AsyncIterator[Running]:
    async with serving("--pod", pod, "--extproc-listen", f"127.0.0.1:{port}") as picker:
        yield picker


@pytest.mark.timeout(300)
async def test_a_picker_is_rolled_under_a_stream_of_connections_and_none_is_reset() -> None:
    """It is told to stop and started again where it was: who comes meanwhile is served or refused, never cut."""
    [port] = free_ports(1)
    async with SimulatedPod(Options(models=("tiny",))) as pod, AsyncExitStack() as stack:
        async with a_picker(pod.url, port) as first:
            stream = await stack.enter_async_context(streaming(port))
            await stream.goes_on()
            first.running.send_signal(signal.SIGTERM)
            assert await first.end() == 0
        await stream.until(lambda: stream.rejected > 0)
        await stack.enter_async_context(a_picker(pod.url, port))
        stream.is_back.set()
        await stream.goes_on()
        assert not stream.lost, stream.lost
