"""Thoughts that are drawn go on at another real pod, by their tokens: at every cut, with the parsers of two models.

Drawn is what states a temperature and no seed; here all but the likeliest token is ruled out by `top_p`, so that
equal requests have equal answers all the same, and what was joined can be compared.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.proxy.resuming.rest import Rest, rest_of
from gateway.proxy.resuming.said import read_said
from gateway.proxy.resuming.stitch import stitched
from gateway.proxy.resuming.thoughts import recalled_from
from routing.request import Api
from tests.gateway.proxy.resuming.test_rehearsing import events_of, hear
from tests.vllm.gateways import in_front, until
from tests.vllm.pods import Pod, running
from tests.vllm.test_pod_loss import drain
from tests.vllm.test_thoughts import PATIENCE_S, requests_of
from tests.vllm.thinker import build, thinking, words_of

pytestmark = pytest.mark.timeout(900, func_only=True)

MODEL = "thinker"

PATH = "/v1/chat/completions"

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools are offered": {"tools": [TOOL]},
    "log-probabilities": {"logprobs": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "thinker"
    build(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinkers(folder: Path) -> AsyncIterator[tuple[Pod, ...]]:
    """One model, whose thoughts two parsers tell from its text."""
    async with running([thinking(folder, MODEL, parser) for parser in ("deepseek_r1", "qwen3")]) as pods:
        yield pods


def asking(folder: Path, tokens: int, **more: Any) -> dict[str, Any]:
    """A third of it are thoughts."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me of the harbour and its ships."}],
        "temperature": 1.0,
        "top_p": 1e-9,
        "max_tokens": tokens,
        "thinking_token_budget": tokens // 3,
        "allowed_token_ids": words_of(folder),
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def post(client: aiohttp.ClientSession, url: str, path: str, body: Any) -> bytes:
    async with client.post(url + path, json=body) as answer:
        told = await answer.read()
        assert answer.status == 200, told
        return told


def alike(stream: bytes) -> tuple[object, ...]:
    """What a client makes of it: texts by their kinds, why it ended, and what it counts as."""
    events = events_of(stream)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    counts = [
        (event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]) for event in events if event.get("usage")
    ]
    return hear(Api.CHAT, stream).texts, reasons, counts


async def gone_on_with(client: aiohttp.ClientSession, url: str, body: dict[str, Any], shown: bytes) -> bytes:
    """All that a client is sent whose stream was cut behind this."""
    said = read_said(Api.CHAT, shown, shown.count(b"\n\n"), withholds_usage=False)
    rest = rest_of(json.dumps(body).encode(), said, sequences=1)
    assert isinstance(rest, Rest), rest
    recall = rest.asking.recall
    assert recall is not None
    prompt = await post(client, url, PATH, json.loads(recall.prompt))
    words = await post(client, url, "/tokenize", json.loads(recall.words))
    recalled = recalled_from(recall, prompt, words)
    assert recalled is not None
    rest = rest.recalled(recalled)
    asked = json.loads(rest.asking.body) | {"kv_transfer_params": {"prompt_token_ids": rest.asking.prompt_ids}}
    joined = stitched(rest.stitch(withholds_usage=False), await post(client, url, PATH, asked))
    assert joined is not None
    return said.told + joined


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parser", [0, 1])
async def test_thoughts_go_on_at_every_cut(thinkers: tuple[Pod, ...], folder: Path, parser: int, way: str) -> None:
    """Inside them, beside the mark that ends them, and in the text behind: as an undisturbed run, usage and all."""
    url, body = thinkers[parser].url, asking(folder, 24, **WAYS[way])
    async with aiohttp.ClientSession() as client:
        whole = await post(client, url, PATH, body)
        events = [event + b"\n\n" for event in whole.split(b"\n\n") if event]
        kinds = {key for key, text in hear(Api.CHAT, whole).texts.items() if text}
        assert len(kinds) == 2, "it thinks and speaks"
        # Behind the role and the first thought, until nothing is missing but usage.
        for cut in range(2, len(events) - 1):
            told = await gone_on_with(client, url, body, b"".join(events[:cut]))
            assert alike(told) == alike(whole), cut


async def test_drawn_thoughts_outlive_their_pod(thinkers: tuple[Pod, ...], folder: Path) -> None:
    """Killed in its text, long after its thoughts. The victim is gone afterwards."""
    victim, other = thinkers
    body = asking(folder, 400)
    async with in_front([pod.url for pod in thinkers]) as gateway, aiohttp.ClientSession() as client:
        whole = await post(client, victim.url, PATH, body)
        drain(gateway, other)
        told = b""
        async with asyncio.timeout(PATIENCE_S), client.post(gateway.url + PATH, json=body) as answer:
            async for piece in answer.content.iter_any():
                told += piece
                if victim.is_running and told.count(b'"content"') > 10:
                    drain(gateway, other, undo=True)
                    victim.kill()
        assert alike(told) == alike(whole)
        await asyncio.to_thread(until, lambda: requests_of(gateway), "the request's line")
        assert [line.get("resumed") for line in requests_of(gateway)] == [1]
