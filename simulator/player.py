"""Plays a trace over HTTP: sends each request when it is due, streams its answer, and times it as a client would.

Needs an address and a trace; independent of engines and routing. Times are in engine seconds: what the clock
shows, times the pods' time scale.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from simulator.answer import Answer, ask
from simulator.prompt_text import prompt_text
from simulator.records import Record
from simulator.traces import Arrival, Trace

MAX_OPEN_REQUESTS = 512
"""Requests open at one time; beyond it arrivals wait here, and count as late."""

RECEIPT_TRIES = 20

RECEIPT_PAUSE_S = 0.02
"""A receipt is written just after the last byte of the answer."""


@dataclass(frozen=True, slots=True)
class Venue:
    """Where to play. `pods` gives a pod's short name by its URL; `admin_url` is None without receipts."""

    url: str
    model: str
    time_scale: float
    pods: Mapping[str, str]
    admin_url: str | None = None
    more_urls: tuple[str, ...] = ()
    """Further gateways of the same pods; requests go to all of them by turns."""

    def url_for(self, index: int) -> str:
        """Where a request goes."""
        return (self.url, *self.more_urls)[index % (1 + len(self.more_urls))]


class Attempt(msgspec.Struct):
    """What is wanted of an attempt on a receipt."""

    engine: str
    predicted_cached_input_tokens: int
    predicted_ttft_s: float


class Receipt(msgspec.Struct):
    attempts: list[Attempt]


class Player:
    """One trace, played once."""

    def __init__(
        self, trace: Trace, venue: Venue, client: aiohttp.ClientSession, note: Callable[[Record], None]
    ) -> None:
        self.late_s: list[float] = []
        """For each request, how long after it was due it was sent: what this machine could not keep up with."""
        self._trace = trace
        self._venue = venue
        self._client = client
        self._note = note
        self._room = asyncio.Semaphore(MAX_OPEN_REQUESTS)
        self._clock = time.monotonic

    async def play(self, start_at_s: float | None = None) -> list[Record]:
        """From now, or a time of the monotonic clock, until the last answer has ended."""
        start = self._clock() if start_at_s is None else start_at_s
        async with asyncio.TaskGroup() as group:
            tasks = []
            for index, arrival in enumerate(self._trace.arrivals):
                # Made before it is due, in time that would be spent waiting.
                body = self._body(index, arrival)
                due = start + arrival.at_s / self._venue.time_scale
                await asyncio.sleep(due - self._clock())
                tasks.append(group.create_task(self._ask(index, arrival, body, due)))
        return [task.result() for task in tasks]

    def _body(self, index: int, arrival: Arrival) -> bytes:
        text = prompt_text(arrival.blocks, self._trace.block_tokens or 1, arrival.prompt_tokens, str(index))
        return msgspec.json.encode(
            {
                "model": self._venue.model,
                "messages": [{"role": "user", "content": text}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": arrival.output_tokens,
                "ignore_eos": True,
            }
        )

    async def _ask(self, index: int, arrival: Arrival, body: bytes, due: float) -> Record:
        async with self._room:
            sent = self._clock()
            answer = await ask(self._client, f"{self._venue.url_for(index)}/v1/chat/completions", body, self._clock)
        self.late_s.append((sent - due) * self._venue.time_scale)
        record = self._record(index, arrival, sent, answer, await self._last_attempt(answer.receipt))
        self._note(record)
        return record

    def _record(self, index: int, arrival: Arrival, sent: float, answer: Answer, attempt: Attempt | None) -> Record:
        usage, scale, first = answer.usage, self._venue.time_scale, answer.first_token_at
        return Record(
            index=index,
            arrived_s=arrival.at_s,
            prompt_tokens=usage.prompt_tokens if usage else arrival.prompt_tokens,
            output_tokens=usage.completion_tokens if usage else 0,
            pod=self._venue.pods.get(attempt.engine.partition("#")[0]) if attempt else None,
            predicted_cached_input_tokens=attempt.predicted_cached_input_tokens if attempt else None,
            cached_tokens=usage.cached_tokens if usage else None,
            predicted_ttft_s=attempt.predicted_ttft_s * scale if attempt else None,
            ttft_s=None if first is None else (first - sent) * scale,
            duration_s=(answer.ended_at - sent) * scale,
            failure=answer.failure,
        )

    async def _last_attempt(self, receipt: str | None) -> Attempt | None:
        """What the gateway's receipt says of the pod that answered."""
        if receipt is None or self._venue.admin_url is None:
            return None
        for _ in range(RECEIPT_TRIES):
            async with self._client.get(f"{self._venue.admin_url}/receipts/{receipt}") as response:
                if response.status == 200:
                    attempts = msgspec.json.decode(await response.read(), type=Receipt).attempts
                    return attempts[-1] if attempts else None
            await asyncio.sleep(RECEIPT_PAUSE_S)
        return None
