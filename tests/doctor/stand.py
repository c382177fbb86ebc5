"""A gateway process before simulated pods, with traffic: what its doctor names, and when."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.running import Running, serving

MODEL = "simulated"

WORDS = tuple(f"word{number}" for number in range(200))

LOOK_S = 5.0

PREFIX_WORDS = 400
"""Of the prompts of one group, which they have in common."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests as a closed loop: each client sends its next one when the last has ended."""

    clients: int = 8
    groups: int = 4
    prompt_words: int = 60
    """Behind the prefix of the group."""
    max_tokens: int = 24
    tools_share: float = 0.0
    pause_s: float = 0.05
    model: str = MODEL
    keys: tuple[str, ...] = ()
    """Of which each request has one."""


class Stand:
    """A running gateway with its pods."""

    def __init__(self, gateway: Running, pods: Sequence[SimulatedPod], session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.pods = tuple(pods)
        self.urls = tuple(pod.url for pod in pods)
        self.sent = 0
        self._session = session

    async def findings(self) -> dict[str, Any]:
        """Return what the admin port shows."""
        return await self.shown("/findings")

    async def shown(self, path: str) -> dict[str, Any]:
        """Return the JSON of a path of the admin port."""
        found: dict[str, Any] = json.loads(await self.page("admin", path))
        return found

    async def page(self, port: str, path: str) -> str:
        """Return the text of a page."""
        async with self._session.get(self.gateway.at(port, path)) as answer:
            return await answer.text()

    async def until_named(self, recipe: str, *, within_s: float = 60.0) -> dict[str, Any]:
        """Wait until a finding of a recipe stands first. Returns it. Raises AssertionError with what was found."""
        shown: dict[str, Any] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    shown = await self.findings()
                    if shown["findings"] and shown["findings"][0]["recipe"] == recipe:
                        return dict(shown["findings"][0])
                    await asyncio.sleep(1.0)
        named = [(each["recipe"], each["pods"], each["severity"]) for each in shown.get("findings", ())]
        raise AssertionError(f"{recipe} is not first within {within_s} s: {named}, not checked: {shown.get('gaps')}")

    async def stays_healthy(self, for_s: float) -> None:
        """Look for so long. Raises AssertionError with a finding that says that requests are slow."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        while loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            found = [each["recipe"] for each in (await self.findings())["findings"] if each["severity"] != "advice"]
            assert found == []

    @asynccontextmanager
    async def under(self, traffic: Traffic, draw: random.Random | None = None) -> AsyncIterator[None]:
        """Send requests inside the block."""
        draw = draw or random.Random(7)
        tasks = [
            asyncio.create_task(self._client(traffic, random.Random(draw.random()))) for _ in range(traffic.clients)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _client(self, traffic: Traffic, draw: random.Random) -> None:
        url = self.gateway.at("traffic", "/v1/chat/completions")
        while True:
            headers = {"authorization": f"Bearer {draw.choice(traffic.keys)}"} if traffic.keys else {}
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self._session.post(url, json=body_of(traffic, draw), headers=headers) as answer:
                    await answer.read()
            self.sent += 1
            await asyncio.sleep(traffic.pause_s * draw.random() * 2)


def body_of(traffic: Traffic, draw: random.Random) -> dict[str, Any]:
    """Return one request: a prefix that its group shares, and words of its own."""
    group = random.Random(draw.randrange(traffic.groups))
    text = " ".join((*group.choices(WORDS, k=PREFIX_WORDS), *draw.choices(WORDS, k=traffic.prompt_words)))
    body: dict[str, Any] = {
        "model": traffic.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": traffic.max_tokens,
        "messages": [{"role": "user", "content": text}],
    }
    if draw.random() < traffic.tools_share:
        body["tools"] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    return body


@asynccontextmanager
async def standing(
    options: Sequence[Options],
    *flags: str,
    config: str = "",
    change: Callable[[Sequence[SimulatedPod]], None] = lambda _: None,
) -> AsyncIterator[Stand]:
    """A gateway before pods with these options; `change` is called with the pods once they listen."""
    async with AsyncExitStack() as stack:
        if config:
            folder = stack.enter_context(TemporaryDirectory())
            await asyncio.to_thread(Path(folder, "hearth.yaml").write_text, config)
            flags = (*flags, "--config", f"{folder}/hearth.yaml")
        pods = [await stack.enter_async_context(SimulatedPod(each)) for each in options]
        change(pods)
        named = [word for pod in pods for word in ("--pod", pod.url)]
        gateway = await stack.enter_async_context(serving(*named, *flags))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=aiohttp.TCPConnector(limit=0))
        )
        yield Stand(gateway, pods, session)
