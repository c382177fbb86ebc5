"""HTTP/2 as another implementation speaks it with us, and as nobody should."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ext_proc.http2 import frames as f
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream
from tests.gateway.ext_proc.echoing import ECHO, Echo, echoing
from tests.gateway.ext_proc.speaking import calling

P = f.Http2ErrorCode.PROTOCOL

HELLO = f.PREFACE + f.settings_frame({})


async def raw(where: str, *written: bytes) -> bytes:
    """What is said to whoever writes this, until we close the connection."""
    host, _, port = where.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for each in written:
        writer.write(each)
    try:
        await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def goodbyes(received: bytes) -> list[int]:
    """The codes of all GOAWAY frames."""
    found, at = [], 0
    while at + 9 <= len(received):
        high, low, kind, _, _ = f.HEAD.unpack_from(received, at)
        size = high << 8 | low
        if at + 9 + size > len(received):
            break
        if kind == f.GOAWAY:
            found.append(struct.unpack_from(">L", received, at + 13)[0])
        at += 9 + size
    return found


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 100_000, 3_000_000])
async def test_messages_of_all_sizes_come_back(size: int) -> None:
    """Within the windows of both sides, whatever they are."""
    async with echoing() as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"x" * size)
        assert await call.message() == b"x" * size
        await call.end()
        assert await call.status() == "0"
        assert port.budget.held_bytes == 0


async def test_many_streams_share_a_connection() -> None:
    """Each hears its own words, in its own order."""
    async with echoing() as port, calling(port.where) as caller:
        calls = [await caller.call(ECHO) for _ in range(50)]
        for turn in range(3):
            for number, call in enumerate(calls):
                await call.log_event(b"%d of %d" % (turn, number))
        for number, call in enumerate(calls):
            assert [await call.message() for _ in range(3)] == [b"%d of %d" % (turn, number) for turn in range(3)]


async def test_what_is_reported_in_one_tick_goes_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty streams that come with one read are answered with a few writes, not with twenty and more."""
    writes: list[bytes] = []
    async with echoing() as port, calling(port.where) as caller:
        calls = [await caller.call(ECHO) for _ in range(20)]
        await caller.ping()
        [connection] = port.port.connections
        write = connection.transport.write

        def note(raw: bytes) -> None:
            writes.append(raw)
            write(raw)

        monkeypatch.setattr(connection, "transport", Noting(connection.transport, note))
        for call in calls:
            caller.h2.send_data(call.number, b"\0\0\0\0\1x")
        await caller.flush()
        for call in calls:
            assert await call.message() == b"x"
    assert 0 < len(writes) < 10


class Noting:
    """A transport whose writes are taken note of."""

    def __init__(self, transport: asyncio.Transport, note: Callable[[bytes], None]) -> None:
        self._transport = transport
        self.write = note

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def test_a_small_window_is_kept_to() -> None:
    """An answer longer than the client's window waits until the client has read."""
    async with echoing() as port, calling(port.where) as caller:
        caller.h2.update_settings({4: 1000})
        await caller.flush()
        call = await caller.call(ECHO)
        await call.log_event(b"x" * 50_000)
        assert len(await call.message()) == 50_000


async def test_who_does_not_listen_is_not_read_either() -> None:
    """What waits for a client that gives no window is bounded: in the end no more of its stream is taken."""
    bounds = Http2Limits(stream_window=1 << 16, max_pending_bytes=1 << 15)
    async with echoing(bounds) as port, calling(port.where) as caller:
        caller.h2.update_settings({4: 0})
        await caller.ping()
        call = await caller.call(ECHO)
        while True:
            room = min(caller.h2.local_flow_control_window(call.number), 4096)
            if room < 4096:
                await caller.ping()
                if caller.h2.local_flow_control_window(call.number) < 4096:
                    break
            caller.h2.send_data(call.number, b"\0" + (4091).to_bytes(4, "big") + b"y" * 4091)
            await caller.flush()
        [connection] = port.port.connections
        [stream] = connection.streams.values()
        assert bounds.max_pending_bytes < stream._pending_bytes < 1 << 18


async def test_a_message_beyond_the_bound_is_rejected() -> None:
    """By its length alone, before it is held."""
    async with echoing(Http2Limits(max_message_bytes=20_000)) as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"x" * 19_995)
        assert len(await call.message()) == 19_995
        await call.log_event(b"x" * 40_000)
        assert await call.status() == "8"
        assert port.fates == ["overfull"]


async def test_unfinished_messages_are_bounded_together() -> None:
    """A budget of all connections: who comes when it is spent is told so, and what was held is given back."""
    async with echoing(most_bytes=100_000) as port, calling(port.where) as caller:
        calls = [await caller.call(ECHO) for _ in range(3)]
        for call in calls:
            caller.h2.send_data(call.number, b"\0" + (90_000).to_bytes(4, "big") + b"x" * 11_000)
            caller.h2.send_data(call.number, b"x" * 16_000)
            caller.h2.send_data(call.number, b"x" * 14_000)
        await caller.flush()
        assert await calls[2].status() == "8"
        assert 0 < port.budget.held_bytes <= 100_000
    await port.port.wait_until_empty(60)
    assert port.budget.held_bytes == 0


async def test_services_that_are_not_there_are_not_implemented() -> None:
    """Reflection among them."""
    async with echoing() as port, calling(port.where) as caller:
        call = await caller.call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        assert await call.status() == "12"
        assert await (await caller.call(ECHO, method="GET")).status() == "12"


async def test_a_stream_that_is_reset_is_lost_to_its_service() -> None:
    """And what comes for it afterwards is old news."""
    async with echoing() as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"once")
        await call.message()
        caller.h2.reset_stream(call.number)
        other = await caller.call(ECHO)
        await other.log_event(b"again")
        assert await other.message() == b"again"
        assert port.fates == ["lost"]


async def test_more_streams_than_there_may_be_are_rejected() -> None:
    """One by one, and the connection lives."""
    async with echoing(most=0) as port, calling(port.where) as caller:
        assert await (await caller.call(ECHO)).status() == f"reset {f.Http2ErrorCode.REFUSED.value}"


async def test_pings_are_answered() -> None:
    """Each of them."""
    async with echoing() as port, calling(port.where) as caller:
        for _ in range(3):
            await caller.ping()


async def test_silent_peers_are_called_and_then_closed() -> None:
    """A peer that answers is asked again and stays; one that has vanished is noticed."""
    async with echoing(Http2Limits(silence_s=0.1, preface_s=5)) as port:
        assert f.frame(f.PING, 0, 0, b"hearth??") in await raw(port.where, HELLO)
    # Answers within a second: a busy machine is not taken for a peer that has vanished.
    async with echoing(Http2Limits(silence_s=1.0, preface_s=5)) as port, calling(port.where) as caller:
        while caller.pings < 2:
            await caller.hear()
        assert not caller.is_over


async def test_leaving_is_reported_before_it_is_done() -> None:
    """New streams are served until the peer has heard that none are wanted; those open end in peace."""
    async with echoing() as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"before")
        await call.message()
        await port.port.begin_drain()
        while caller.goodbye is None:
            await caller.hear()
        caller_h2_is_closed = caller.h2.state_machine.state.name == "CLOSED"
        assert caller_h2_is_closed or caller.goodbye.error_code == 0


async def test_the_last_stream_is_named_and_none_beyond_it_started() -> None:
    """First any are welcome that were on their way; then the last is named, and a later one is refused, not lost."""
    async with echoing(Http2Limits(preface_s=0.4)) as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"before")
        await call.message()
        await port.port.begin_drain()
        received = b""
        async with asyncio.timeout(60):
            while len(goodbyes(received)) < 2:
                received += await caller.reader.read(1 << 16)
            caller.writer.write(f.frame(f.HEADERS, f.END_HEADERS, 3, b"\x83"))
            rejected = f.reset_frame(3, f.Http2ErrorCode.REFUSED)
            while rejected not in received:
                received += await caller.reader.read(1 << 16)
        assert f.goaway_frame(f.MAX_WINDOW, f.Http2ErrorCode.NONE) in received
        assert f.goaway_frame(1, f.Http2ErrorCode.NONE) in received


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", f.Http2ErrorCode.PROTOCOL, id="HTTP/1"),
        pytest.param(HELLO + f.frame(f.DATA, 0, 1, b"x"), f.Http2ErrorCode.PROTOCOL, id="body without a stream"),
        pytest.param(HELLO + f.frame(f.HEADERS, 4, 2, b"\x83"), f.Http2ErrorCode.PROTOCOL, id="even number"),
        pytest.param(
            HELLO + f.frame(f.HEADERS, 0, 1, b"\x83") + f.frame(f.PING, 0, 0, b"8" * 8),
            f.Http2ErrorCode.PROTOCOL,
            id="interrupted",
        ),
        pytest.param(HELLO + f.frame(f.CONTINUATION, 4, 1, b"\x83"), f.Http2ErrorCode.PROTOCOL, id="continued"),
        pytest.param(
            HELLO + f.frame(f.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), f.Http2ErrorCode.COMPRESSION, id="bad block"
        ),
        pytest.param(HELLO + f.frame(f.HEADERS, 0xC, 1, b"\xff\x83"), f.Http2ErrorCode.PROTOCOL, id="too much padding"),
        pytest.param(HELLO + f.frame(f.PUSH_PROMISE, 4, 1, b"1234"), f.Http2ErrorCode.PROTOCOL, id="promise"),
        pytest.param(HELLO + f.window_frame(0, f.MAX_WINDOW), f.Http2ErrorCode.FLOW_CONTROL, id="window overflow"),
        pytest.param(HELLO + f.settings_frame({4: 1 << 31}), f.Http2ErrorCode.FLOW_CONTROL, id="window setting"),
        pytest.param(
            HELLO + f.frame(f.SETTINGS, 0, 0, b"12345"), f.Http2ErrorCode.FRAME_SIZE, id="settings of odd length"
        ),
        pytest.param(HELLO + f.frame(f.RST_STREAM, 0, 7, b"1234"), f.Http2ErrorCode.PROTOCOL, id="reset of no stream"),
        pytest.param(HELLO + f.frame(f.DATA, 0, 1, b"x" * 20_000), f.Http2ErrorCode.FRAME_SIZE, id="long frame"),
    ],
)
async def test_faults_end_the_connection_with_their_name(written: bytes, fault: f.Http2ErrorCode) -> None:
    """As RFC 9113 numbers them."""
    async with echoing() as port:
        assert goodbyes(await raw(port.where, written)) == [fault]


async def test_endless_header_blocks_are_ended() -> None:
    """A flood of continuations costs a few frames and no more."""
    flood = f.frame(f.HEADERS, 0, 1, b"\x83") + f.frame(f.CONTINUATION, 0, 1, b"\x84") * 100
    async with echoing() as port:
        assert goodbyes(await raw(port.where, HELLO, flood)) == [f.Http2ErrorCode.ENHANCE_YOUR_CALM]
    bomb = b"".join(b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000 for _ in range(3))
    async with echoing(replace(Http2Limits(), max_header_bytes=5000)) as port:
        written = f.frame(f.HEADERS, 4, 1, bomb)
        assert goodbyes(await raw(port.where, HELLO, written)) == [f.Http2ErrorCode.COMPRESSION]


async def test_rapid_resets_leave_nothing_behind() -> None:
    """Streams opened and reset at once, by the thousand: none is open, and the connection serves on."""
    async with echoing() as port, calling(port.where) as caller:
        for _ in range(1000):
            call = await caller.call(ECHO)
            caller.h2.reset_stream(call.number)
        call = await caller.call(ECHO)
        await call.log_event(b"after")
        assert await call.message() == b"after"
        [connection] = port.port.connections
        assert set(connection.streams) == {call.number}
        assert port.fates == ["lost"] * 1000


class Failing(Echo):
    """A service that raises where it is told to, and is told to by the first message."""

    at = ""

    def on_message(self, message: bytes) -> None:
        self.at = message.decode()
        self._maybe("take")
        self.stream.send(b"")

    def on_end(self) -> None:
        self._maybe("ended")

    def on_lost(self) -> None:
        self._maybe("lost")

    def on_tick(self, now_s: float) -> None:
        self._maybe("check")

    def on_drain(self) -> None:
        self._maybe("leave")

    def _maybe(self, name: str) -> None:
        if self.at == name:
            raise RuntimeError(name)


@pytest.mark.parametrize("at", ["begin", "take", "ended", "lost", "check", "leave"])
async def test_a_service_that_fails_ends_its_stream_alone(at: str) -> None:
    """Another stream of the same connection goes on; what was raised is reported once, and nothing stays open."""
    failures: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, reported: failures.append(reported["exception"]))

    def serve(stream: GrpcStream) -> Failing:
        if at == "begin":
            raise RuntimeError("begin")
        return Failing(stream, [])

    async with (
        echoing(Http2Limits(preface_s=0.4), more={b"/test.Fail/Fail": serve}) as port,
        calling(port.where) as caller,
    ):
        other = await caller.call(ECHO)
        await other.log_event(b"before")
        assert await other.message() == b"before"
        call = await caller.call("/test.Fail/Fail")
        if at != "begin":
            await call.log_event(at.encode(), ends=at == "ended")
        if at == "lost":
            await call.message()
            caller.h2.reset_stream(call.number)
            await caller.ping()
        elif at == "leave":
            await call.message()
            await port.port.begin_drain()
            async with asyncio.timeout(60):
                while not failures:
                    await caller.reader.read(1 << 16)
            return
        else:
            assert await call.status() == f"reset {f.Http2ErrorCode.INTERNAL.value}"
        await other.log_event(b"after")
        assert await other.message() == b"after"
        [connection] = port.port.connections
        assert set(connection.streams) == {other.number}
    assert [str(failure) for failure in failures] == [at]


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            f.frame,
            st.integers(0, 12),
            st.integers(0, 255),
            st.sampled_from([0, 1, 1, 3, 5, 7]),
            st.binary(max_size=64),
        ),
        st.just(f.frame(f.HEADERS, 4, 1, b"\x83\x86\x04\x0a/test.Echo")),
    ),
    max_size=12,
)


@given(pieces=PIECES, has_hello=st.booleans())
def test_nothing_that_is_written_breaks_us(pieces: list[bytes], has_hello: bool) -> None:
    """Whatever bytes come: the connection goes on or is closed with a reason, and nothing stays held."""

    async def run() -> None:
        async with echoing() as port:
            host, _, number = port.where.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(number))
            writer.write((HELLO if has_hello else b"") + b"".join(pieces))
            writer.write_eof()
            async with asyncio.timeout(60):
                received = await reader.read(-1)
            writer.close()
            assert len(goodbyes(received)) <= 1
            await port.port.wait_until_empty(60)
            assert port.budget.held_bytes == 0

    failures: list[dict[str, object]] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, reported: failures.append(reported))
        runner.run(run())
    assert not failures
