"""Bytes behind the head that are not body: trailers, extensions and sizes of chunks, from clients and from pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.attacks.ratios import PATH, a_target, read_answer, request
from tests.attacks.silent_pod import MODELS, complete

PIECE = b"x" * 16_000
PIECES = 512
"""8 MB in all."""

HEAD = (
    f"POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode()
)

ENDLESS = {
    "a trailer's value": b"0\r\nx-end: ",
    "a trailer's name": b"0\r\n",
    "an extension of a chunk": b"2;name=",
    "an extension's name": b"2;",
    "a size": b"0" * 16,
}
"""What begins and has no end, by what it is."""

MOST_PLAIN_REQUESTS = 100
"""CPU of so many plain requests an endless message of 8 MB may take, reading and closing included."""

MOST_PEAK_BYTES = 4 << 20


@pytest.mark.parametrize("what", ENDLESS)
async def test_a_message_without_an_end_costs_no_more_than_plain_requests(what: str) -> None:
    """Eight megabytes behind the head that are not body are cut off early, whatever they are."""
    async with a_target() as target:
        plain = await target.plain()
        filler = b"0" * 16_000 if what == "a size" else PIECE
        answers: list[bytes] = []

        async def attack() -> None:
            answers.append(await target.send(HEAD + ENDLESS[what], *([filler] * PIECES)))

        cost = await target.cost(attack)
        assert cost.ratio(plain) < MOST_PLAIN_REQUESTS, (cost, plain)
        assert cost.peak_bytes < MOST_PEAK_BYTES, cost
        status = answers[0].split(b" ")[1:2]
        assert status in ([b"400"], [b"431"]), answers


async def test_many_complete_trailers_cost_no_more_than_plain_requests() -> None:
    """A hundred thousand short trailers are cut off as one long one is."""
    async with a_target() as target:
        plain = await target.plain()
        piece = b"".join(b"x-%d: 1\r\n" % number for number in range(1000))
        cost = await target.cost(lambda: target.send(HEAD + b"0\r\n", *([piece] * 100)))
        assert cost.ratio(plain) < MOST_PLAIN_REQUESTS, (cost, plain)
        assert cost.peak_bytes < MOST_PEAK_BYTES, cost


@pytest.mark.parametrize("what", ENDLESS)
async def test_a_pods_message_without_an_end_costs_no_more_than_plain_requests(what: str) -> None:
    """The same from a pod is that pod's fault: its client gets a 502, and everybody else is served meanwhile."""
    filler = b"0" * 16_000 if what == "a size" else PIECE

    async def misbehave(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(ENDLESS[what])
        for _ in range(PIECES):
            writer.write(filler)
            await writer.drain()

    async with a_pod(misbehave) as (pod, behave), a_target(pod=pod) as target:
        plain = await target.plain()
        behave(False)
        statuses: list[int] = []

        async def attack() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(request(b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}'))
            statuses.append((await read_answer(reader))[0])
            writer.close()

        cost = await target.cost(attack)
        assert statuses == [502]
        assert cost.ratio(plain) < MOST_PLAIN_REQUESTS, (cost, plain)
        assert cost.peak_bytes < MOST_PEAK_BYTES, cost


@asynccontextmanager
async def a_pod(
    misbehave: Callable[[asyncio.StreamWriter], Awaitable[object]],
) -> AsyncIterator[tuple[str, Callable[[bool], None]]]:
    """A pod's URL, and a switch: with False its answers to prompts are `misbehave`'s."""
    is_good = True

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                _, _, length = head.partition(b"content-length: ")
                await reader.readexactly(int(length.split(b"\r\n")[0] or b"0"))
                if head.startswith(b"post") and not is_good:
                    await misbehave(writer)
                elif head.startswith(b"post"):
                    writer.write(complete(ANSWER))
                elif b"metrics" in head:
                    writer.write(complete(b"", b"text/plain"))
                else:
                    writer.write(complete(MODELS))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def behave(good: bool) -> None:
        nonlocal is_good
        is_good = good

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", behave
    finally:
        server.close()


ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hi."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}'
)


@pytest.mark.parametrize("port", ["metrics", "admin"])
async def test_a_trailer_without_an_end_is_cut_off_on_small_ports(port: str) -> None:
    """Four times the bytes cost no more: the ports for operators read no further than they must."""
    async with a_target() as target:
        plain = await target.plain()
        head = b"POST /pods/drain HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"

        async def attack(pieces: int) -> None:
            begun = head + ENDLESS["a trailer's value"]
            await target.send(begun, *([PIECE] * pieces), port=target.port_of(port))

        await attack(PIECES)  # What is loaded to report the first bad request stays.
        cost = await target.cost(lambda: attack(4 * PIECES))
        assert cost.ratio(plain) < MOST_PLAIN_REQUESTS, (cost, plain)
        assert cost.peak_bytes < MOST_PEAK_BYTES, cost
