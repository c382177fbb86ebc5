"""Clients as most people have them: OpenAI's own, with the retries that it makes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import httpx2 as httpx
from openai import APIConnectionError, APIError, AsyncOpenAI

from tests.chaos.cast import MODEL

WORDS = ("warm", "cold", "prefix", "decode", "ledger", "rung", "ü", "日本", "pair", "tenant")

PATIENCE_S = 120.0


class Fate(StrEnum):
    """What became of one request."""

    WHOLE = "whole"
    CUT = "cut"
    """A stream that had begun ended with an error that the gateway told."""
    RECONNECTED = "reconnected"
    """The gateway itself was lost inside a stream; asked again, the answer was whole."""
    FAILED = "failed"
    """Nothing of it came, after all retries."""
    WRONG = "wrong"
    """It said something else than an undisturbed pod."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    prompt: str
    is_streamed: bool
    most_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended. `words` says what went wrong."""

    asked: Asked
    fate: Fate
    words: str = ""


def draw_request(number: int, draw: Random) -> Asked:
    """Prompts share beginnings, so that warmth is at work."""
    group = draw.randrange(8)
    prompt = f"group {group} " + " ".join(WORDS[group % 5 :] * 20) + f" question {number}"
    return Asked(number, prompt, draw.random() < 0.8, draw.choice((5, 40, 150)))


class Clients:
    """Ask through the balancer, and compare with what an undisturbed pod says."""

    def __init__(self, front: str, undisturbed: str) -> None:
        timeout = httpx.Timeout(PATIENCE_S)
        self._front = AsyncOpenAI(base_url=f"{front}/v1", api_key="k", timeout=timeout)
        self._undisturbed = AsyncOpenAI(base_url=f"{undisturbed}/v1", api_key="k", timeout=timeout)

    async def close(self) -> None:
        await self._front.close()
        await self._undisturbed.close()

    async def ask(self, asked: Asked) -> Ended:
        """Ask once; once more where the gateway was lost inside a stream."""
        said: list[str] = []
        try:
            await self._say(self._front, asked, said)
        except (httpx.TransportError, APIConnectionError) as error:
            if not said:
                return Ended(asked, Fate.FAILED, repr(error))
            return await self._again(asked)
        except APIError as error:
            return Ended(asked, Fate.CUT if said else Fate.FAILED, repr(error))
        return await self._compared(asked, said, Fate.WHOLE)

    async def _again(self, asked: Asked) -> Ended:
        said: list[str] = []
        try:
            await self._say(self._front, asked, said)
        except (httpx.TransportError, APIError) as error:
            return Ended(asked, Fate.FAILED, f"asked again: {error!r}")
        return await self._compared(asked, said, Fate.RECONNECTED)

    async def _compared(self, asked: Asked, said: list[str], fate: Fate) -> Ended:
        wanted: list[str] = []
        await self._say(self._undisturbed, asked, wanted)
        found, right = "".join(said), "".join(wanted)
        return Ended(asked, fate) if found == right else Ended(asked, Fate.WRONG, f"{found!r} is not {right!r}")

    async def _say(self, client: AsyncOpenAI, asked: Asked, said: list[str]) -> None:
        """Adds what is said as it comes."""
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": asked.prompt}],
            "max_tokens": asked.most_tokens,
        }
        if not asked.is_streamed:
            whole = await client.chat.completions.create(**body)
            said.append(whole.choices[0].message.content or "")
            return
        async for chunk in await client.chat.completions.create(**body, stream=True):
            said += [choice.delta.content for choice in chunk.choices if choice.delta.content]
