"""Memory of bodies: what tiny pieces hold beside large ones, and that no tenant takes the room of all."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256

from tests.attacks.ratios import PATH, Cost, Target, a_target, plain_request, read_answer, request
from tests.gateway.http.scripted import until

MB = 1 << 20
BODY_BYTES = 6 * MB
KEYS = {name: [sha256(name.encode()).hexdigest()] for name in ("greedy", "decent")}
POLICY = json.dumps({"auth": {"keys": KEYS}, "tenants": {"greedy": {"max_parallel_requests": 1}, "decent": {}}})
CONFIG = "limits: {max_total_body_bytes: 67108864, max_body_bytes: 16777216}"


async def hold(target: Target, head: bytes, piece: bytes, times: int) -> Cost:
    """What it costs to hold a body that comes in such pieces and is not finished."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)

    async def send() -> None:
        writer.write(head)
        for _ in range(times):
            writer.write(piece)
            await writer.drain()
        await has_read(target, writer)

    try:
        return await target.cost(send)
    finally:
        del reader
        writer.transport.abort()


async def has_read(target: Target, writer: asyncio.StreamWriter) -> None:
    """Wait until the gateway has taken what was written, and is at its loop again."""
    await until(lambda: not writer.transport.get_write_buffer_size())
    reader, other = await asyncio.open_connection("127.0.0.1", target.port)
    for _ in range(3):
        other.write(plain_request())
        await read_answer(reader)
    other.close()


async def test_a_body_in_two_byte_chunks_holds_what_a_plain_one_holds() -> None:
    """Six megabytes in chunks of two bytes take at most half as much memory again as six megabytes in large ones."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    async with a_target() as target:
        await target.plain()
        large = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        plain = await hold(target, head.encode(), large, BODY_BYTES >> 16)
        tiny = await hold(target, head.encode(), b"2\r\n  \r\n" * 8192, BODY_BYTES >> 14)
        assert plain.peak_bytes > BODY_BYTES // 2, plain
        assert tiny.peak_bytes < 1.5 * BODY_BYTES + MB, (tiny, plain)


async def test_a_tenant_does_not_take_the_room_for_all_bodies() -> None:
    """One tenant with unfinished bodies of 15 MB holds half of 64 MB; the other's bodies of 4 MB are served."""
    async with (
        a_target("--policy", "{folder}/policy.yaml", config=CONFIG, files={"policy.yaml": POLICY}) as target,
        AsyncExitStack() as stack,
    ):
        head = request(b"", "authorization: Bearer greedy").replace(b"length: 0", b"length: %d" % (15 * MB))
        answers: list[asyncio.Task[tuple[int, bytes]]] = []

        async def attack() -> None:
            for _ in range(8):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                stack.callback(_abort, writer)
                writer.write(head)
                for _ in range(14):
                    writer.write(bytes(MB))
                await until(partial(has_sent_or_heard, reader, writer))
                answers.append(asyncio.create_task(read_answer(reader)))
                stack.callback(answers[-1].cancel)
                assert (await ask(target, "decent", 1000))[0] == 200
            await until(lambda: sum(answer.done() for answer in answers) >= 5)

        cost = await target.cost(attack)
        assert all(b"tenant's share" in answer.result()[1] for answer in answers if answer.done())
        assert (await ask(target, "decent", 4 * MB))[0] == 200
        assert cost.peak_bytes < 48 * MB, cost


def _abort(writer: asyncio.StreamWriter) -> None:
    """Called with the writer: one that is collected closes its connection."""
    writer.transport.abort()


def has_sent_or_heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    return not writer.transport.get_write_buffer_size() or writer.is_closing() or reader.at_eof()


async def ask(target: Target, key: str, prompt_chars: int) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        body = plain_request(prompt_chars).partition(b"\r\n\r\n")[2]
        writer.write(request(body, f"authorization: Bearer {key}"))
        return await read_answer(reader)
    finally:
        writer.close()
