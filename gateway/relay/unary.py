"""A small question to a pod over HTTP, whose answer is read whole: nothing of it is the client's."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from gateway.http.response_writer import Source
from gateway.pipeline.attempt import LegEnd
from gateway.relay.bodies import BUSY, OUR_KEY_IS_WRONG, Answer, PodHead
from gateway.relay.fast_path import Parsing
from gateway.relay.pod_errors import read_error
from gateway.relay.upstream_pool import Pool, PoolIsFull

LARGEST_ANSWER = 4 << 20
"""One token, and where some ten thousand blocks lie, or a prompt's token ids."""


class Whole(Struct, frozen=True):
    """What came of it. `ANSWERED` with a status from 400 up is a no to the question."""

    end: LegEnd
    status: int = 0
    body: bytes = b""
    detail: str = ""

    @property
    def is_answer(self) -> bool:
        return self.end is LegEnd.ANSWERED and self.status < 400


async def ask_whole(pool: Pool, url: str, question: list[bytes], by_s: float) -> Whole:
    """Ask a pod. Raises only `asyncio.CancelledError`."""
    try:
        leg = await _ask(pool, url, question, by_s, fresh=False)
        if leg.was_stale:
            leg = await _ask(pool, url, question, by_s, fresh=True)
    except PoolIsFull:
        return Whole(LegEnd.BUSY, detail=f"There are too many connections to {url}.")
    except TimeoutError:
        return Whole(LegEnd.UNREACHABLE, detail=f"{url} did not take a connection in time.")
    except OSError as error:
        return Whole(LegEnd.UNREACHABLE, detail=f"{url} took no connection: {error.strerror or error}.")
    return leg.whole()


async def _ask(pool: Pool, url: str, question: list[bytes], by_s: float, *, fresh: bool) -> WholeLeg:
    line = (None if fresh else pool.lease_idle(url)) or await pool.connect(url)
    leg = WholeLeg(pool.loop)
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


class WholeLeg:
    """From asking to its end. What a line carries, and what is done with the body."""

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
            self.fail(LegEnd.MALFORMED, "The pod's answer to the gateway is too large.")
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

    def whole(self) -> Whole:
        """What came of it."""
        if self._end is not LegEnd.ANSWERED:
            return Whole(self._end, detail=self._detail)
        body = bytes(self._body)
        return Whole(LegEnd.ANSWERED, self._status, body) if self._status < 400 else _refused(self._status, body)


def _refused(status: int, body: bytes) -> Whole:
    error = read_error(status, body)
    end = LegEnd.ANSWERED
    if error.status in BUSY:
        end = LegEnd.BUSY
    elif error.status in OUR_KEY_IS_WRONG or error.status >= 500:
        end = LegEnd.BROKEN
    return Whole(end, error.status, detail=error.message)
