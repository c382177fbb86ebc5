"""Plays a scenario over HTTP, against any gateway that speaks OpenAI's chat completions. Times are the clock's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from random import Random

import aiohttp
import msgspec

from bench.slo.clients import persist
from bench.slo.fates import No, RequestResult
from bench.slo.gateways import ONE, Gateways
from bench.slo.scenario import Customer
from bench.slo.traffic import Offered
from simulator.answer import ask
from simulator.prompt_text import prompt_text
from simulator.stage import MODEL
from tenancy.objective import Tier

RETRY_COUNT = "x-stainless-retry-count"
"""How OpenAI's clients say how often they have asked before."""

LINGER_S = 30.0
"""Wait after the last request, at least: longer than any objective of a first token."""


@dataclass(frozen=True, slots=True)
class Address:
    """A gateway, and how it tells tenants apart."""

    url: str
    headers_of: Callable[[Customer], Mapping[str, str]] = lambda _tenant: {}
    model: str = MODEL
    further: tuple[str, ...] = ()
    """Other gateways for the same traffic."""
    gateways: Gateways = ONE
    """How attempts are shared out to all of these."""


def headers_by_name(keys: Sequence[str], headers: Sequence[str]) -> Callable[[Customer], Mapping[str, str]]:
    """From `NAME=KEY` and `NAME=HEADER:VALUE`, where a name is a tenant's or, for all others of it, a tier's."""
    by_name: dict[str, dict[str, str]] = {}
    for option in keys:
        name, _, key = option.partition("=")
        by_name.setdefault(name, {})["authorization"] = f"Bearer {key}"
    for option in headers:
        name, _, header = option.partition("=")
        field, _, value = header.partition(":")
        by_name.setdefault(name, {})[field] = value.strip()
    return lambda tenant: {**by_name.get(tenant.tier, {}), **by_name.get(tenant.name, {})}


def decided_s(traffic: Sequence[Offered], tiers: Mapping[str, Tier]) -> float:
    """Return when the last answer must have ended to meet its objectives, in seconds from the beginning."""
    ends_s = [traffic[-1].at_s + LINGER_S]
    for offered in traffic:
        tpot_s = tiers[offered.tenant.tier].tpot_s
        if tpot_s < inf:
            ends_s.append(offered.at_s + LINGER_S + offered.answer_tokens * tpot_s)
    return max(ends_s)


async def play_live(
    address: Address, traffic: Sequence[Offered], seed: int, tiers: Mapping[str, Tier]
) -> list[RequestResult]:
    """Return what became of all requests; what has not ended when no objective of `tiers` can be met any more counts
    as unanswered.
    """
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        player = _Player(address, client, seed)
        with suppress(TimeoutError):
            async with asyncio.timeout(decided_s(traffic, tiers)), asyncio.TaskGroup() as clients:
                for number, offered in enumerate(traffic):
                    # Made before it is due, in time that would be spent waiting.
                    body = _body(address.model, offered, f"{seed} {number}")
                    await asyncio.sleep(offered.at_s - player.now_s())
                    clients.create_task(player.ask(offered, body))
        return player.fates


class _Player:
    def __init__(self, address: Address, client: aiohttp.ClientSession, seed: int) -> None:
        self.fates: list[RequestResult] = []
        self._address = address
        self._client = client
        self._draw = Random(f"{seed} retries").random
        self._urls = (address.url, *address.further)
        self._gateway_draw = Random(f"{seed} gateways").random
        self._started_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._started_s

    async def ask(self, offered: Offered, body: bytes) -> None:
        """One request, as often as its client tries."""
        result = RequestResult(offered)
        self.fates.append(result)
        await persist(lambda retries: self._try(result, body, retries), self._draw)

    async def _try(self, result: RequestResult, body: bytes, retries: int) -> tuple[int, Mapping[str, str]]:
        gateway = self._address.gateways.pick(self._gateway_draw())
        url, sent_s = f"{self._urls[gateway]}/v1/chat/completions", self.now_s()
        headers = {**self._address.headers_of(result.offered.tenant), RETRY_COUNT: str(retries)}
        answer = await ask(self._client, url, body, self.now_s, headers)
        if answer.failure or answer.first_token_at is None:
            started = answer.first_token_at is not None
            result.noes.append(No(answer.failure or "no token", answer.ended_at - sent_s, started))
        else:
            result.first_token_s, result.end_s = answer.first_token_at, answer.ended_at
            result.cached_tokens = answer.usage.cached_tokens or 0 if answer.usage else 0
        return answer.status, answer.headers


def _body(model: str, offered: Offered, name: str) -> bytes:
    text = prompt_text((), 1, offered.prompt_tokens, name)
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": offered.answer_tokens,
            "ignore_eos": True,
        }
    )
