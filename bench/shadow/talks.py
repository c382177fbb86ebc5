"""Conversations with real pods: each turn repeats the answers that came before it, as clients do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp
import msgspec

USERS = 10

MAX_ANSWER = 24

SEED = 23

WORDS = (
    *("river", "stone", "garden", "winter", "engine", "letter", "market", "window", "bridge", "summer", "paper"),
    *("holds", "moves", "shows", "keeps", "under", "beside", "before", "after", "small", "large", "green", "quiet"),
)

ASSISTANTS = 3
"""Different system prompts."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user sends, not before a time and not before the answer to the turn before."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Served:
    """One answered turn."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


def scripts(length_s: float, turns: int) -> list[tuple[str, list[Turn]]]:
    """Return the system prompt and the turns of each user; the same each time."""
    draw, found = Random(SEED), []
    systems = [_text(draw, 90) for _ in range(ASSISTANTS)]
    for user in range(USERS):
        begin = draw.uniform(0.0, length_s / 4)
        times = sorted(begin + draw.uniform(0.0, length_s - begin) for _ in range(turns))
        found.append((systems[user % ASSISTANTS], [Turn(at_s, _text(draw, draw.randint(15, 90))) for at_s in times]))
    return found


def _text(draw: Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words)) + "."


async def converse(url: str, model: str, length_s: float, turns: int) -> list[Served]:
    """Have all conversations at once. Raises `aiohttp.ClientError` where a request fails."""
    served: list[Served] = []
    began_s = asyncio.get_running_loop().time()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as client, asyncio.TaskGroup() as group:
        for system, script in scripts(length_s, turns):
            group.create_task(_talk(client, f"{url}/v1/chat/completions", model, system, script, began_s, served))
    return served


async def _talk(
    client: aiohttp.ClientSession,
    url: str,
    model: str,
    system: str,
    script: list[Turn],
    began_s: float,
    served: list[Served],
) -> None:
    messages = [{"role": "system", "content": system}]
    for turn in script:
        await asyncio.sleep(began_s + turn.at_s - asyncio.get_running_loop().time())
        messages.append({"role": "user", "content": turn.text})
        text, one = await _send(client, url, model, messages)
        messages.append({"role": "assistant", "content": text})
        served.append(one)


async def _send(
    client: aiohttp.ClientSession, url: str, model: str, messages: list[dict[str, str]]
) -> tuple[str, Served]:
    clock = asyncio.get_running_loop().time
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": MAX_ANSWER, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    sent_s, first_s, text, usage = clock(), None, "", dict[str, Any]()
    async with client.post(url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = msgspec.json.decode(line[6:])
            if first_s is None:
                first_s = clock()
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
            usage = event.get("usage") or usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return text, Served((first_s or clock()) - sent_s, usage["prompt_tokens"], cached)
