"""Connections that are only held: other ports answer all the same, also where the process has few descriptors."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack

import pytest

from tests.attacks.ratios import Target, a_target, plain_request, read_answer

DESCRIPTORS = 256
HELD = 300
CLOSED = 0
LIMITED = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")

pytestmark = pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs the prlimit command")


async def hold(stack: AsyncExitStack, port: int, stated: bytes) -> list[asyncio.StreamWriter]:
    """Open connections that say the beginning of a request, until the stack is left."""
    writers = []
    for _ in range(HELD):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            continue
        stack.callback(_abort, writer)
        writer.write(stated)
        writers.append(writer)
    return writers


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def status_of(target: Target, port: str, path: str) -> int:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port_of(port))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        try:
            return int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("attacked", ["traffic", "metrics", "admin"])
async def test_every_port_answers_while_one_is_held(attacked: str) -> None:
    """Three hundred unfinished heads on one port, with 256 descriptors: health, metrics, admin and pods go on."""
    async with a_target(by=LIMITED) as target, AsyncExitStack() as stack:
        await hold(stack, target.port_of(attacked), b"GET / HTTP/1.1\r\nx: ")
        assert await status_of(target, "metrics", "/health") == 200
        assert await status_of(target, "metrics", "/metrics") == 200
        assert await status_of(target, "admin", "/config") == 200
        if attacked != "traffic":
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            stack.callback(_abort, writer)
            writer.write(plain_request())
            assert (await read_answer(reader))[0] == 200


async def test_clients_beyond_the_descriptors_are_reported_and_served_when_others_leave() -> None:
    """They get a 429, the log says once that descriptors are few, and no pod is taken for broken."""
    async with a_target(by=LIMITED) as target:
        line = await target.gateway.until("fd_limit_low")
        assert 50 < line["usable_connections"] < DESCRIPTORS // 2
        async with AsyncExitStack() as stack:
            writers = await hold(stack, target.port, b"")
            assert len(writers) > DESCRIPTORS
            assert await plain_status(target) in (CLOSED, 429)
        async with asyncio.timeout(60):
            while (status := await plain_status(target)) != 200:
                assert status in (CLOSED, 429)


async def plain_status(target: Target) -> int:
    """The status of a plain request on a connection of its own, or `CLOSED`."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    except OSError:
        return CLOSED
    try:
        writer.write(plain_request())
        return (await read_answer(reader))[0]
    except (ConnectionError, asyncio.IncompleteReadError):
        return CLOSED
    finally:
        writer.transport.abort()
