"""OpenAI's and Anthropic's own clients with the retries that they make by themselves, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2 as httpx
import openai

PATIENCE_S = 120.0

RETRIES = 2
"""Of both, unless told."""

TOO_MANY = 429

TRIES = "x-stainless-retry-count"
"""In which both say how often they have tried before."""

LOST = (httpx.TransportError, openai.APIConnectionError, anthropic.APIConnectionError)
"""The connection is gone."""

TOLD = (openai.APIError, anthropic.APIError)
"""Somebody has said what is wrong; a lost connection is one of these as well, so ask for `LOST` first."""


@dataclass(slots=True)
class Traffic:
    """What the SDKs did and were told beneath what their users see."""

    requested: int = 0
    asked_again: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    async def count_request(self, request: httpx.Request) -> None:
        self.requested += 1
        self.asked_again += request.headers.get(TRIES, "0") != "0"

    async def count_answer(self, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1


class Sdks:
    """Both, for one server and one key."""

    def __init__(self, url: str, key: str, *, retries: int = RETRIES) -> None:
        self.traffic = Traffic()
        hooks: dict[str, list[Any]] = {
            "request": [self.traffic.count_request],
            "response": [self.traffic.count_answer],
        }
        wide = httpx.Limits(max_connections=1000, max_keepalive_connections=20)
        common: dict[str, Any] = {"timeout": PATIENCE_S, "limits": wide, "event_hooks": hooks}
        again: dict[str, Any] = {"max_retries": retries}
        self.openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, http_client=openai.DefaultAsyncHttpxClient(**common), **again
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=url, api_key=key, http_client=anthropic.DefaultAsyncHttpxClient(**common), **again
        )

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()
