"""How a pod's answer to a replay is read: which faults are the prompt's, and which the pod's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from gateway.relay.http_transport import PodKeys
from gateway.warmup.prompt_store import KeptPrompt
from gateway.warmup.replay import ReplayEnd, ReplaySender
from routing.request import Api
from supply.warmup import ReplayTerms
from tests.routing.engines import MODEL, ask, router_of


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (200, ReplayEnd.COMPUTED),
        (400, ReplayEnd.REJECTED),
        (401, ReplayEnd.FAILED),
        (404, ReplayEnd.FAILED),
        (429, ReplayEnd.FAILED),
        (500, ReplayEnd.FAILED),
    ],
)
def test_a_pod_with_another_key_or_model_costs_no_kept_prompt(status: int, end: ReplayEnd) -> None:
    """Only what the pod says of the prompt itself has it forgotten."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"usage": {"prompt_tokens": 9, "completion_tokens": 1}}, status=status)

    async def run() -> ReplayEnd:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        router = router_of(1)
        engine = router.fleet.engine("http://0")
        assert engine is not None
        prompt = KeptPrompt(
            1, Api.CHAT, "/v1/chat/completions", MODEL, b'{"model":"m"}', ask().prompt, None, ReplayTerms(), 0.0
        )
        async with aiohttp.ClientSession() as session:
            sender = ReplaySender(session, PodKeys(None), router.fleet)
            at = replace(engine, pod=f"http://127.0.0.1:{runner.addresses[0][1]}")
            report = await sender.send(at, prompt, "r", 30.0)
        await runner.cleanup()
        return report.end

    assert asyncio.run(run()) is end
