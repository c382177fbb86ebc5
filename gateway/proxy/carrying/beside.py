"""A reply beside the client's own: what it is told is kept until it takes the client over, and flows on from there.

For an answer that is asked for while another may still be the client's: one of the two is to reach it, and of the other
not a byte. Bounded: a pod that says more than there is room for is paused. Knows not who decides between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gateway.proxy.client.asked import Asked
from gateway.proxy.client.reply import JSON, Reply, Source
from routing.refusal import Refused

ROOM_BYTES = 256 << 10
"""Of an answer that waits. What is on its way when its pod is paused comes besides."""

Deed = Callable[[Reply], None]


class BesideReply(Reply):
    """Of one answer. `begun_beside` is done when there is something that the client could be given."""

    __slots__ = ("_client", "_deeds", "_has_taken_over", "_kept_bytes", "_source", "begun_beside", "events")

    def __init__(self, asked: Asked, client: Reply) -> None:
        self._client = client
        self._source: Source | None = None
        self._deeds: list[Deed] = []
        self._kept_bytes = 0
        self._has_taken_over = False
        self.events = 0
        """Of a stream, that are kept."""
        self.begun_beside: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(asked, client.request_id, asyncio.Transport(), keep_alive=True, answered=lambda: None)
        self.api, self.is_anthropic, self.fields = client.api, client.is_anthropic, client.fields

    @property
    def source(self) -> Source | None:
        return self._source

    @source.setter
    def source(self, source: Source | None) -> None:
        self._source = source
        if self._has_taken_over:
            self._client.source = source

    @property
    def is_chunked(self) -> bool:
        return self._has_taken_over and self._client.is_chunked

    def take_over(self) -> bool:
        """The client gets this answer: what is kept at once, what comes as it comes. The other's pod is told to stop.

        Returns whether it can be: not where the client has been told something already, or has gone.
        """
        client = self._client
        if client.begun or client.ended:
            return False
        if client.source is not None:
            client.source.abort()
        self._has_taken_over = True
        client.source, client.fields = self._source, self.fields
        self.write_chunk, self.passed = client.write_chunk, client.passed
        deeds, self._deeds = self._deeds, []
        for deed in deeds:
            deed(client)
        if self._source is not None:
            self._source.resume()
        return True

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.begun = self.ended = True
        self._do(lambda reply: reply.answer(status, body, content_type=content_type, fields=fields), body)

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        self.begun, self.is_stream = True, is_stream
        self._do(lambda reply: reply.begin(status, content_type, first, length=length, is_stream=is_stream), first)

    def send(self, payload: bytes) -> None:
        self._do(lambda reply: reply.send(payload), payload)

    def end(self) -> None:
        self.ended = True
        self._do(lambda reply: reply.end())

    def refuse(self, refusal: Refused, *, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._do(lambda reply: reply.refuse(refusal, fields=fields))

    def cut(self) -> None:
        self._do(lambda reply: reply.cut())

    def write_by(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        return self._client.write_by(write)

    def _do(self, deed: Deed, payload: bytes = b"") -> None:
        if self._has_taken_over:
            deed(self._client)
            return
        self._deeds.append(deed)
        self._kept_bytes += len(payload)
        self.events += payload.count(b"\n\n")
        if self._kept_bytes > ROOM_BYTES and self._source is not None:
            self._source.pause()
        if not self.begun_beside.done():
            self.begun_beside.set_result(None)
