"""The picker's port: TLS that is renewed, workers behind one port, and a stop under load that nobody notices."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import ssl
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from bench.extproc.pickers import ports_in_a_row
from simulator.pod import SimulatedPod
from tests.envoy.envoys import BUFFERED_NONE, DUPLEX, Way, envoy
from tests.envoy.scene import CHAT, Scene, a_scene, asking, until
from tests.gateway.running import serving
from tests.gateway.runtime.test_tls import make_certificate


async def certificate_of(where: str) -> str:
    """The certificate that a new client of the picker is shown."""
    host, _, port = where.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make certificates")
async def test_tls_to_the_picker_is_renewed_while_envoy_calls(tmp_path: Path) -> None:
    """Envoy takes a certificate that nobody has signed; a new one is shown to who connects after a reload."""
    files = make_certificate(tmp_path, "old.example")
    tls = {"cert": str(files.cert), "key": str(files.key)}
    async with a_scene(Way(tls=True), extproc={"tls": tls}) as scene:
        async with scene.post(asking()) as answer:
            assert answer.status == 200
        old = await certificate_of(scene.picker)
        make_certificate(tmp_path, "new.example")
        scene.gateway.running.send_signal(signal.SIGHUP)

        async def is_new() -> bool:
            return await certificate_of(scene.picker) != old

        await until(is_new)
        async with envoy(Way(tls=True), scene.picker) as other:
            for url in (scene.url, other.url):
                async with scene.session.post(url + CHAT, json=asking()) as answer:
                    assert answer.status == 200


@pytest.mark.parametrize("shares", [False, True])
async def test_several_workers_pick_behind_one_port_or_behind_one_each(*, shares: bool) -> None:
    """Where they listen is said; health and requests are served there."""
    first = ports_in_a_row(2)
    reported = {"listen": f"127.0.0.1:{first}", "reuse_port": shares}
    async with a_scene(None, extproc=reported, settings={"processes": 2}) as scene:
        listening = next(line for line in scene.gateway.lines if line["event"] == "listening")
        ports = [first] if shares else [first, first + 1]
        assert listening["extproc"] == [f"127.0.0.1:{port}" for port in ports]
        async with envoy(Way(checks=True), *listening["extproc"]) as front:

            async def is_served() -> bool:
                async with scene.session.post(front.url + CHAT, json=asking()) as answer:
                    return int(answer.status) == 200

            for _ in range(6):
                await until(is_served)
            assert (await scene.metrics())["hearth_extproc_connections"] >= len(ports)


async def ask_until(over: asyncio.Event, session: aiohttp.ClientSession, url: str, *, stream: bool) -> list[str]:
    """Ask again and again; what was not as it should be."""
    wrong = []
    while not over.is_set():
        async with session.post(url + CHAT, json=asking(stream=stream)) as answer:
            text = await answer.text()
        if answer.status != 200 or (stream and "[DONE]" not in text) or (not stream and '"usage"' not in text):
            wrong.append(f"{answer.status}: {text[:200]}")
    return wrong


@pytest.mark.parametrize("way", [BUFFERED_NONE, DUPLEX], ids=["buffered", "duplex"])
async def test_a_picker_stopped_under_load_loses_no_request(tmp_path: Path, way: Way) -> None:
    """Two pickers behind one Envoy that looks at their health and tries nothing again: one is told to stop, serves on
    as a lame duck until Envoy has seen it, and every answer is whole.
    """
    checked = Way(way.request, way.response, trailers=way.trailers, checks=True)
    config = tmp_path / "hearth.json"
    async with AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(SimulatedPod(Scene.usual())) for _ in range(2)]
        reported = {
            "discovery": {"static": {"pods": [pod.url for pod in pods]}},
            "extproc": {"listen": "127.0.0.1:0"},
            "timeouts": {"lame_duck_s": 600},
        }
        config.write_text(json.dumps(reported))
        pickers = [await stack.enter_async_context(serving("--config", str(config))) for _ in range(2)]
        where = [next(one for one in picker.lines if one["event"] == "listening")["extproc"][0] for picker in pickers]
        front = await stack.enter_async_context(envoy(checked, *where))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def are_seen(count: int) -> bool:
            return (await front.stats("cluster.picker.membership_healthy")).popitem()[1] == count

        await until(partial(are_seen, 2))
        over = asyncio.Event()
        requested = [
            asyncio.create_task(ask_until(over, session, front.url, stream=bool(turn % 2))) for turn in range(6)
        ]
        pickers[0].running.send_signal(signal.SIGTERM)
        await until(partial(are_seen, 1))
        over.set()
        assert not [wrong for one in asyncio.as_completed(requested) for wrong in await one]
        pickers[0].running.send_signal(signal.SIGTERM)
        assert await pickers[0].end() == 0
