"""Talks to one vLLM pod over HTTP for measuring: completions of token ids with the time of each event, and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

TIMEOUT_S = 300.0


class PodError(RuntimeError):
    """A pod that does not answer as vLLM does."""


@dataclass(slots=True)
class Timing:
    """One completion. Times are of the event loop's clock."""

    sent_s: float
    events_s: list[float] = field(default_factory=list)
    """One per event with a token."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    ended_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each event and at the end; whoever waits for it clears it."""

    async def until(self, events: int) -> None:
        """Wait until so many tokens have come, or the stream is over."""
        while len(self.events_s) < events and not self.ended_s:
            self.changed.clear()
            await self.changed.wait()

    @property
    def first_s(self) -> float:
        """When the first token came. Raises IndexError before."""
        return self.events_s[0]

    @property
    def ttft_s(self) -> float:
        """From sending to the first token."""
        return self.events_s[0] - self.sent_s


class PodClient:
    """One pod and the model it serves."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str, max_model_len: int) -> None:
        self._http = http
        self.url = url
        self.model = model
        self.max_model_len = max_model_len

    async def complete(self, prompt: Sequence[int], output_tokens: int, timing: Timing | None = None) -> Timing:
        """Stream a completion of exactly so many tokens. Raises `PodError` where the pod answers otherwise."""
        body = msgspec.json.encode(
            {
                "model": self.model,
                "prompt": list(prompt),
                "max_tokens": output_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        seen = timing or Timing(0.0)
        seen.sent_s = asyncio.get_running_loop().time()
        try:
            await self._stream(body, seen)
        except (aiohttp.ClientError, TimeoutError) as fault:
            raise PodError(f"{self.url}: {fault!r}") from fault
        if not seen.events_s:
            raise PodError(f"{self.url}: a completion without tokens")
        return seen

    async def _stream(self, body: bytes, seen: Timing) -> None:
        clock = asyncio.get_running_loop().time
        headers = {"content-type": "application/json"}
        async with self._http.post(f"{self.url}/v1/completions", data=body, headers=headers) as answer:
            if answer.status != 200:
                raise PodError(f"{self.url}: {answer.status} {(await answer.text())[:200]}")
            async for line in answer.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = msgspec.json.decode(line[6:])
                if "error" in event:
                    raise PodError(f"{self.url}: {str(event['error'])[:200]}")
                if event.get("choices"):
                    seen.events_s.append(clock())
                    seen.changed.set()
                if usage := event.get("usage"):
                    seen.prompt_tokens, seen.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
                    seen.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        seen.ended_s = clock()
        seen.changed.set()

    async def metrics(self) -> dict[str, float]:
        """Return the sum of each metric's series over all labels, by name."""
        return sums_of(await self._read("/metrics"))

    async def exposition(self) -> str:
        """Return the text of /metrics."""
        return await self._read("/metrics")

    async def cache_config(self) -> dict[str, str]:
        """Return the labels of `vllm:cache_config_info`, empty where there is none."""
        for line in (await self._read("/metrics")).splitlines():
            if line.startswith("vllm:cache_config_info{"):
                return labels_of(line)
        return {}

    async def version(self) -> str:
        """Return the engine's version."""
        try:
            return str(msgspec.json.decode(await self._read("/version")).get("version", "unknown"))
        except (PodError, msgspec.DecodeError):
            return "unknown"

    async def forget_prefixes(self) -> bool:
        """Empty the prefix cache where the pod lets one (development mode)."""
        async with self._http.post(f"{self.url}/reset_prefix_cache") as answer:
            return answer.status == 200

    async def _read(self, path: str) -> str:
        try:
            async with self._http.get(self.url + path) as answer:
                answer.raise_for_status()
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError) as fault:
            raise PodError(f"{self.url}{path}: {fault!r}") from fault


@asynccontextmanager
async def connected(url: str, model: str | None = None) -> AsyncIterator[PodClient]:
    """Open a client of a pod that serves `model`, or whatever it serves first. Raises `PodError`."""
    url = url.rstrip("/")
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 20) as http:
        try:
            async with http.get(f"{url}/v1/models") as answer:
                answer.raise_for_status()
                served: list[dict[str, Any]] = (await answer.json())["data"]
        except (aiohttp.ClientError, TimeoutError, KeyError) as fault:
            raise PodError(f"{url}/v1/models: {fault!r}") from fault
        chosen = next((one for one in served if model in (None, one["id"])), None)
        if chosen is None:
            raise PodError(f"{url} serves no {model}")
        yield PodClient(http, url, chosen["id"], int(chosen.get("max_model_len") or 0))


def sums_of(text: str) -> dict[str, float]:
    """Return the sum over labels of each series of a Prometheus exposition, by name."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            try:
                sums[name] = sums.get(name, 0.0) + float(value)
            except ValueError:
                continue
    return sums


def labels_of(series: str) -> dict[str, str]:
    """Return the labels of one series; values without commas or quotes in them."""
    inside = series.partition("{")[2].rpartition("}")[0]
    pairs = (pair.partition("=") for pair in inside.split(","))
    return {name.strip(): value.strip('"') for name, _, value in pairs}


def today() -> str:
    """Return today's date, ISO."""
    return time.strftime("%Y-%m-%d", time.gmtime())
