"""How the tests talk to a simulated pod: one request, one answer; a stream as its events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile

MODEL = "small"

PROFILE = Profile(time_scale=50.0, block_size=16, kv_capacity_tokens=16_000, max_num_seqs=64)
"""Fast, so that no test waits for an answer; a step is a quarter of a millisecond."""

PATIENCE_S = 120.0
"""For what must come; a machine may be busy."""

LONG = "What did the captain see when the fog lifted over the harbour at dawn? " * 8
"""Some forty blocks of prompt."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str | None, Any]]:
        """(name, value) of each event; the closing [DONE] is (None, None)."""
        return [parse_event(text) for text in self.body.decode().split("\n\n")[:-1]]

    @property
    def values(self) -> list[Any]:
        return [value for _, value in self.events]


def parse_event(text: str) -> tuple[str | None, Any]:
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    return fields.get("event"), None if fields["data"] == "[DONE]" else json.loads(fields["data"])


class Client:
    """Asks one pod."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        async with self.session.get(self.url + path, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        given = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(self.url + path, headers=given, **content) as response:
            return Answer(response.status, response.headers, await response.read())

    async def ask(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        """The value of a good answer."""
        answer = await self.post(path, body, headers)
        assert answer.status == 200, answer.body
        return answer.json()

    async def stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A good answer, streamed to its end."""
        answer = await self.post(path, {**body, "stream": True})
        assert answer.status == 200, answer.body
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return answer

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of the pod's metrics."""
        page = (await self.get("/metrics")).body.decode()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in page.splitlines() if line.startswith(f"vllm:{name}{{")]
        [line] = [line for line in lines if all(each in line for each in wanted)]
        return float(line.rpartition(" ")[2])


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[SimulatedPod, Client]]:
    """A pod with these options, and a client for it."""
    chosen = Options(**{"profile": PROFILE, "models": (MODEL,), **options})
    async with SimulatedPod(chosen) as pod, aiohttp.ClientSession() as session:
        yield pod, Client(pod.url, session)


def chat(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    """The smallest chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
