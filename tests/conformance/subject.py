"""The pod that the contracts are tried on, be it a simulated one or real vLLM: what it is and how to ask it.

Knows no contract but by name, and nothing of what stands behind the URL.
"""

import asyncio
import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.conformance.wire import Body, Exchange, cut, pieces, spell

CONTRACTS = tuple(
    f"tests.conformance.{name}"
    for name in ("answers", "busy", "continuing", "measures", "refusals", "silence", "streams", "surface", "thinking")
)
"""Modules that pytest must be told of, for their assertions to say what they compared."""

PATIENCE_S = 250.0
"""For one exchange; the longest prefill of the contracts takes a real pod 3 s on a busy small machine."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

STORY = (
    *("the", "sea", "was", "calm", "and", "the", "old", "ship", "went", "slowly", "on"),
    *("while", "its", "captain", "told", "of", "storms", "and", "far", "away", "islands"),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A pod that nobody else asks. Blocks are those of its prefix cache; its context is its longest prompt."""

    url: str
    model: str
    block_tokens: int
    context_tokens: int
    _fresh: Iterator[str] = field(default_factory=lambda: (secrets.token_hex(8) for _ in itertools.count()))

    def prompt(self, words: int = 8) -> str:
        """Text of at least so many tokens, that this pod has not seen nor any beginning of it, and with an answer."""
        story = itertools.islice(itertools.cycle(STORY), words)
        return f"{next(self._fresh)} {' '.join(story)}. Tell me what happened next."

    def request(self, path: str, prompt: str | None = None, tokens: int = 3, **fields: Any) -> dict[str, Any]:
        """The smallest request of an API, answered alike every time."""
        text = self.prompt() if prompt is None else prompt
        requested: dict[str, Any] = {"model": self.model, "temperature": 0}
        match path:
            case "/v1/completions":
                requested |= {"prompt": text, "max_tokens": tokens}
            case "/v1/responses":
                requested |= {"input": text, "max_output_tokens": tokens}
            case _:
                requested |= {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        return requested | fields

    async def get(self, path: str) -> Exchange:
        return await self.exchange("GET", path)

    async def post(self, path: str, body: Body = None, headers: Mapping[str, str] | None = None) -> Exchange:
        return await self.exchange("POST", path, body, {"Content-Type": "application/json", **(headers or {})})

    async def ask(self, path: str, prompt: str | None = None, tokens: int = 3, **fields: Any) -> Any:
        """The value of a good answer to `request`."""
        exchange = await self.post(path, self.request(path, prompt, tokens, **fields))
        assert exchange.status == 200, exchange.body
        return exchange.json()

    async def stream(self, path: str, prompt: str | None = None, tokens: int = 3, **fields: Any) -> Exchange:
        """A good answer to `request`, streamed."""
        exchange = await self.post(path, self.request(path, prompt, tokens, stream=True, **fields))
        assert exchange.status == 200, exchange.body
        assert exchange.is_whole
        return exchange

    async def exchange(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> Exchange:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await self.connect()
            try:
                writer.write(spell(method, path, body, {"Connection": "close", **(headers or {})}))
                return cut([piece async for piece in pieces(reader)])
            finally:
                writer.close()
                await writer.wait_closed()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = urlsplit(self.url)
        return await asyncio.open_connection(address.hostname, address.port)


async def acquaint(url: str) -> Subject:
    """The pod at `url`, from what it tells of itself."""
    nameless = Subject(url, "", 0, 0)
    card = (await nameless.get("/v1/models")).json()["data"][0]
    (cache,) = (await samples(nameless))["cache_config_info"]
    return Subject(url, card["id"], int(cache.labels["block_size"]), card["max_model_len"])


async def samples(subject: Subject) -> dict[str, list[Sample]]:
    """The pod's own metrics by sample name, without the prefix `vllm:`."""
    page = (await subject.get("/metrics")).body.decode()
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                found.setdefault(sample.name.removeprefix("vllm:"), []).append(sample)
    return found
