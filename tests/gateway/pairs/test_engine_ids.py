"""Bootstrap servers are asked once for many, believed for a while, and a bad answer is no answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gateway.pairs.pairs import TTL_S, BootstrapServers

ANSWER = '{"0": {"engine_id": "a", "worker_addr": {}}, "1": {"engine_id": "b", "worker_addr": {}}}'


class Server:
    """Answers `/query`, and counts how often it was asked."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.requested = 0
        self.now_s = 0.0
        self.address = ""
        self.bootstraps: BootstrapServers

    async def query(self, request: web.Request) -> web.Response:
        self.requested += 1
        return web.Response(text=self.answer, content_type="application/json")


@asynccontextmanager
async def serving(answer: str = ANSWER) -> AsyncIterator[Server]:
    server, app = Server(answer), web.Application()
    app.router.add_get("/query", server.query)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.address = f"{host}:{port}"
    async with aiohttp.ClientSession() as session:
        server.bootstraps = BootstrapServers(session, lambda: server.now_s)
        yield server
    await runner.cleanup()


async def test_ids_are_requested_once_and_believed_for_a_while() -> None:
    """By rank, and anew when they are old or were forgotten."""
    async with serving() as server:
        ask = server.bootstraps.engine_id
        assert await asyncio.gather(*(ask(server.address, rank) for rank in (0, 1, 2))) == ["a", "b", ""]
        assert server.requested == 1
        server.now_s = TTL_S + 1
        assert await ask(server.address, 0) == "a"
        server.bootstraps.forget(server.address)
        assert await ask(server.address, 0) == "a"
        assert server.requested == 3


@pytest.mark.parametrize("answer", ["", "no", "[]", '{"0": {}}', '{"0": {"engine_id": 7}}'])
async def test_a_bad_answer_is_none(answer: str) -> None:
    """And is not remembered."""
    async with serving(answer) as server:
        assert await server.bootstraps.engine_id(server.address, 0) == ""
        server.answer = ANSWER
        assert await server.bootstraps.engine_id(server.address, 0) == "a"


async def test_no_one_there_is_no_error() -> None:
    """A pod that has gone tells nothing."""
    async with serving() as server:
        gone = server.address
    async with aiohttp.ClientSession() as session:
        assert await BootstrapServers(session, lambda: 0.0).engine_id(gone, 0) == ""
