"""What path the picker judges, and what path a pod is asked at: the same, whatever a client sends through Envoy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from tests.envoy.envoys import BUFFERED_NONE, BUFFERED_STREAMED, DUPLEX, STREAMED_NONE, Envoy, Way, envoy
from tests.envoy.scene import CHAT
from tests.gateway.running import Running, serving

BODY = json.dumps({"model": "big", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()

REJECTED = (
    "//v1/chat/completions",
    "//elsewhere/v1/chat/completions",
    "///v1/chat/completions",
    "/v1//chat/completions",
    "/v1/./chat/completions",
    "/v1/models/../chat/completions",
    "/x/../v1/chat/completions",
    "/v1/%63hat/completions",
    "/v1%2fchat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions%00",
    "/v1/chat/completions;x=1",
    "/v1\\chat\\completions",
)
"""None of them is a path in normal form that is served."""


@dataclass
class Recorder:
    """A pod that answers everything, and keeps the paths of what it was asked to do, as they came."""

    url: str
    paths: list[str] = field(default_factory=list)


@asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    found = Recorder("")

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "big", "parent": None}]})
        body = await request.read()
        if body == BODY:
            found.paths.append(request.raw_path)
            stated = {"message": {"role": "assistant", "content": "Hi"}, "index": 0, "finish_reason": "stop"}
            return web.json_response({"id": "1", "object": "chat.completion", "model": "big", "choices": [stated]})
        return web.Response(status=404 if request.path == "/metrics" else 200)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}"
    try:
        yield found
    finally:
        await runner.cleanup()


@asynccontextmanager
async def behind(way: Way, folder: Path, pod: Recorder) -> AsyncIterator[tuple[Running, Envoy]]:
    """A gateway in front of one pod, and an Envoy that asks it."""
    config = folder / "hearth.yaml"
    config.write_text(json.dumps({"discovery": {"static": {"pods": [pod.url]}}, "extproc": {"listen": "127.0.0.1:0"}}))
    async with serving("--config", str(config)) as gateway:
        line = next(line for line in gateway.lines if line["event"] == "listening")
        async with envoy(way, str(line["extproc"][0])) as front:
            yield gateway, front


async def status_of(url: str, target: str) -> int:
    """The status of a chat whose request line holds this target as it stands."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {target} HTTP/1.1\r\nhost: hearth\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(head.encode("latin-1") + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    try:
        async with asyncio.timeout(60):
            return int((await reader.readline()).split(b" ")[1])
    finally:
        writer.close()


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(BUFFERED_NONE, id="buffered"),
        pytest.param(BUFFERED_STREAMED, id="streamed answer"),
        pytest.param(STREAMED_NONE, id="streamed request"),
        pytest.param(DUPLEX, id="duplex"),
    ],
)
async def test_a_pod_is_called_at_the_path_that_was_judged(way: Way, tmp_path: Path) -> None:
    """Paths that are not in normal form are rejected as by the proxy; a query is not passed on, as by the proxy."""
    async with recording() as pod, behind(way, tmp_path, pod) as (gateway, front):
        for target in REJECTED:
            # 405: what stands below /v1/models/ is a model's name, which no POST asks for. 400: Envoy's own word.
            assert await status_of(gateway.at("traffic"), target) in (404, 405), target
            assert await status_of(front.url, target) in (400, 404, 405), target
        assert pod.paths == []
        for target in (CHAT, f"{CHAT}?beta=true", f"{CHAT}?x=/../admin", f"http://elsewhere.example{CHAT}"):
            pod.paths.clear()
            assert await status_of(front.url, target) == 200, target
            assert await status_of(gateway.at("traffic"), target) == 200, target
            assert pod.paths == [CHAT, CHAT]
