"""Exact warmth through all processes of a gateway: what a pod's events say is what receipts foretell."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.gateway.kv_index.publisher import Publisher
from tests.gateway.kv_index.tokenizing import tokens_of
from tests.gateway.running import ANYWHERE, Running, serving
from tests.routing.kv_model import ModelEngine

BLOCK = 16
BLOCKS = 24
WORDS = ("sea", "ship", "captain", "storm", "island", "return")


class Pod:
    """Answers chats with one token, keeps KV blocks as vLLM does, and tells of them."""

    def __init__(self, publisher: Publisher) -> None:
        self.url = ""
        self._publisher = publisher
        self._engine = ModelEngine(BLOCKS, BLOCK, secret=7)

    async def chat(self, request: web.Request) -> web.Response:
        tokens = tokens_of((await request.json())["messages"])
        cached = self._engine.hit_tokens(tokens)
        running = self._engine.begin(tokens)
        assert running is not None
        self._engine.end(running)
        await self._publisher.log_event(*self._engine.reported())
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1, "total_tokens": len(tokens) + 1}
        message = {"role": "assistant", "content": "x"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny", "choices": choices}
        return web.json_response(answer | {"usage": usage | {"prompt_tokens_details": details}})

    async def tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": tokens_of((await request.json())["messages"])})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "parent": None}]})

    async def metrics(self, _: web.Request) -> web.Response:
        tokens = BLOCK * BLOCKS
        labels = f'block_size="{BLOCK}",engine="0",kv_cache_size_tokens="{tokens}"'
        return web.Response(text=f"vllm:cache_config_info{{{labels}}} 1.0\n")

    async def sources(self, _: web.Request) -> web.Response:
        reported = {"endpoint": self._publisher.endpoint, "replay_endpoint": self._publisher.replay_endpoint}
        return web.json_response({"0": {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv", **reported}})


@asynccontextmanager
async def pod_of(publisher: Publisher) -> AsyncIterator[Pod]:
    pod = Pod(publisher)
    app = web.Application()
    requested = {
        "/health": pod.health,
        "/v1/models": pod.models,
        "/metrics": pod.metrics,
        "/kv_event_sources": pod.sources,
    }
    app.add_routes([web.get(path, answer) for path, answer in requested.items()])
    app.add_routes([web.post("/v1/chat/completions", pod.chat), web.post("/tokenize", pod.tokenize)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pod.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield pod
    finally:
        await runner.cleanup()


async def ask(client: aiohttp.ClientSession, gateway: Running, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """One chat: its last attempt as the receipt has it, and what was really warm. A worker may not know the pod yet."""
    async with client.post(gateway.at("traffic", "/v1/chat/completions"), json=body) as answer:
        if answer.status in (404, 503):
            return {"cache_source": "approximate"}, 0
        assert answer.status == 200, await answer.text()
        real = (await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
        receipt = answer.headers["x-hearth-request-id"]
    for _ in range(200):
        async with client.get(gateway.at("admin", f"/receipts/{receipt}")) as reported:
            if reported.status == 200:
                return (await reported.json())["attempts"][-1], real
    raise AssertionError("no receipt")


async def settled(client: aiohttp.ClientSession, gateway: Running) -> None:
    """Until all workers know the pod, and whom the index process follows: ten exact answers in a row."""
    hello = {"model": "tiny", "messages": [{"role": "user", "content": "sea"}]}
    in_a_row = 0
    for _ in range(2000):
        attempt, _ = await ask(client, gateway, hello)
        in_a_row = in_a_row + 1 if attempt["cache_source"] == "precise" else 0
        if in_a_row == 10:
            return
    raise AssertionError("the workers do not know the pod")


async def test_receipts_predict_what_events_reported(tmp_path: Path) -> None:
    """Two workers, one index process, a cache that is turned over: every prompt to the token."""
    rng = random.Random(3)
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(Publisher())
        pod = await stack.enter_async_context(pod_of(publisher))
        config = tmp_path / "hearth.yaml"
        config.write_text(
            "processes: 2\nkv_events: {max_wait_s: 5}\n"
            f"discovery: {{static: {{pods: ['{pod.url}']}}}}\n"
            "model_list: [{model_name: tiny}]\n"
        )
        gateway = await stack.enter_async_context(serving("--config", str(config), where=ANYWHERE))
        if not any(line["event"] == "kv_events_subscribed" for line in gateway.lines):
            await gateway.until("kv_events_subscribed")
        connector = aiohttp.TCPConnector(force_close=True)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        await settled(client, gateway)
        talks: list[list[dict[str, str]]] = [[] for _ in range(4)]
        right = exact = 0
        for _ in range(60):
            talk = rng.choice(talks)
            if len(talk) > 5:
                talk.clear()
            talk.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(4, 30)))})
            attempt, real = await ask(client, gateway, {"model": "tiny", "messages": talk})
            talk.append({"role": "assistant", "content": "x"})
            if attempt["cache_source"] == "precise":
                exact += 1
                right += attempt["predicted_cached_input_tokens"] == real
        assert exact > 40
        assert right >= 0.98 * exact
        async with client.get(gateway.at("admin", "/fleet")) as shown:
            fleet = json.loads(await shown.text())
        (shown_pod,) = fleet["pods"]
        assert shown_pod["engines"][0]["cache_source"] == "precise"
        async with client.get(gateway.at("metrics", "/metrics")) as page:
            figures = await page.text()
        assert f'hearth_engine_kv_events_active{{dp_rank="0",upstream="{pod.url}"' in figures
        assert 'hearth_prefix_lookups_total{result="precise"}' in figures
