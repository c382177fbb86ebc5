"""A pair's prefill leg over HTTP: the pod's answer is read for what it hands over; nothing of it is the client's."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from gateway.proxy.answer.bodies import BUSY, OUR_KEY_IS_WRONG, Answer, PodHead
from gateway.proxy.answer.flow import Parsing
from gateway.proxy.client.reply import Source
from gateway.proxy.pods.errors import read_error
from gateway.proxy.pods.pool import Pool, PoolIsFull
from gateway.spine.carrier import LegEnd, Prefilled
from routing.placement import Usage

LARGEST_ANSWER = 4 << 20
"""One token, and where some ten thousand blocks lie."""


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """In the words of OpenAI's APIs, old and new, and of Anthropic's."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None
    input_tokens_details: _CachedTokens | None = None
    cache_read_input_tokens: int | None = None

    def usage(self) -> Usage | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = details.cached_tokens if details is not None else self.cache_read_input_tokens
        read = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens
        if read is None:
            return None
        # Anthropic's input tokens are those that were not read from a cache.
        tokens = read if details is not None or self.prompt_tokens is not None else read + (cached or 0)
        return Usage(tokens, 1, cached)


class _Told(msgspec.Struct):
    usage: _Usage | None = None
    kv_transfer_params: Any = None


_DECODER = msgspec.json.Decoder(_Told)


async def ask_prefill(pool: Pool, url: str, question: list[bytes], by_s: float) -> Prefilled:
    """Ask a pod for a prefill, and read what it hands over. Raises only `asyncio.CancelledError`."""
    try:
        leg = await _ask(pool, url, question, by_s, fresh=False)
        if leg.was_stale:
            leg = await _ask(pool, url, question, by_s, fresh=True)
    except PoolIsFull:
        return Prefilled(LegEnd.BUSY, detail=f"There are too many connections to {url}.")
    except TimeoutError:
        return Prefilled(LegEnd.UNREACHABLE, detail=f"{url} did not take a connection in time.")
    except OSError as error:
        return Prefilled(LegEnd.UNREACHABLE, detail=f"{url} took no connection: {error.strerror or error}.")
    return leg.prefilled()


async def _ask(pool: Pool, url: str, question: list[bytes], by_s: float, *, fresh: bool) -> PrefillLeg:
    line = (None if fresh else pool.lease_idle(url)) or await pool.connect(url)
    leg = PrefillLeg(pool.loop)
    line.ask(leg, question, by_s)
    try:
        await leg.ended
    except BaseException:
        line.abort()  # Nobody wants it any more: its engine stops.
        raise
    return leg


class Unheard:
    """Stands where a client's reply would: there is nobody to be told anything."""

    __slots__ = ("source",)

    begun = False

    def __init__(self) -> None:
        self.source: Source | None = None


class PrefillLeg:
    """One prefill leg, from asking to its end. What a line carries, and what is done with the body."""

    has_begun = False

    __slots__ = ("_body", "_detail", "_end", "_status", "ended", "reply", "was_stale")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reply = Unheard()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.was_stale = False
        self._status = 0
        self._body = bytearray()
        self._end = LegEnd.ANSWERED
        self._detail = ""

    def has_told_all(self) -> bool:
        return False

    def open_answer(self, head: PodHead) -> Answer | None:
        """All of it is of interest."""
        self._status = head.status
        if head.is_encoded:
            self.fail(LegEnd.MALFORMED, "The pod compressed its answer, unasked.")
            return None
        return self

    def take(self, payload: bytes) -> None:
        if len(self._body) + len(payload) > LARGEST_ANSWER:
            if self.reply.source is not None:
                self.reply.source.abort()
            self.fail(LegEnd.MALFORMED, "The pod's answer to a prefill is too large.")
            return
        self._body += payload

    def flow(self, line: Parsing) -> None:
        """A body is few reads."""

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, end: LegEnd, detail: str) -> None:
        if not self.ended.done():
            self._end, self._detail = end, detail
            self.ended.set_result(None)

    def prefilled(self) -> Prefilled:
        """What came of it."""
        if self._end is not LegEnd.ANSWERED:
            return Prefilled(self._end, detail=self._detail)
        if self._status >= 400:
            return self._refused()
        try:
            told = _DECODER.decode(self._body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Prefilled(LegEnd.MALFORMED, self._status, detail="The pod's answer to a prefill is not JSON.")
        usage = told.usage.usage() if told.usage is not None else None
        return Prefilled(LegEnd.ANSWERED, self._status, told.kv_transfer_params, usage)

    def _refused(self) -> Prefilled:
        error = read_error(self._status, bytes(self._body))
        end = LegEnd.ANSWERED
        if error.status in BUSY:
            end = LegEnd.BUSY
        elif error.status in OUR_KEY_IS_WRONG or error.status >= 500:
            end = LegEnd.BROKEN
        return Prefilled(end, error.status, detail=error.message)
