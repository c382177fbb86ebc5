"""Clients that ask the same at the same time share one answer, where their tenant's policy allows it.

Only what would be answered alike is shared: not streams, not what is drawn at random, not what an engine stores. The
answer is generated for nobody in particular: whoever leaves, even who asked first, takes it from nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from gateway.http.client_request import Asked
from gateway.http.response_writer import JSON, Reply
from routing.rejection import Reason, Refused
from routing.request import Api, Request

SHARED_HEADER = "x-hearth-shared"
"""Names the receipt of the request whose answer it is."""

STATEFUL = frozenset({Api.RESPONSES})
"""Its answers are stored one by one."""


class Drawing(Struct):
    """How the next token is chosen."""

    temperature: float | None = None
    seed: int | None = None


DRAWING = msgspec.json.Decoder(Drawing)


def is_shareable(request: Request, body: bytes) -> bool:
    """Whether asking twice would be answered alike."""
    if request.stream or request.api in STATEFUL:
        return False
    if not request.api.generates:
        return True
    try:
        drawing = DRAWING.decode(body)
    except msgspec.MsgspecError:
        return False  # The engine will say what is wrong with it.
    return drawing.temperature == 0 or drawing.seed is not None


@dataclass(frozen=True, slots=True)
class Told:
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class SharedReply(Reply):
    """The reply to a crowd: nothing is written, all of it is kept until it is whole."""

    __slots__ = ("_content_type", "_parts", "_status", "whole")

    def __init__(self, asked: Asked, reply: Reply) -> None:
        super().__init__(asked, reply.request_id, asyncio.Transport(), keep_alive=True, answered=lambda: None)
        self.api, self.is_anthropic = reply.api, reply.is_anthropic
        self.whole: asyncio.Future[Told | Refused] = asyncio.get_running_loop().create_future()
        self._status, self._content_type = 0, JSON
        self._parts: list[bytes] = []

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._tell(Told(status, content_type, body))

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        self.begun = True
        self._status, self._content_type = status, content_type
        self._parts.append(first)

    def send(self, payload: bytes) -> None:
        self._parts.append(payload)

    def end(self) -> None:
        self._tell(Told(self._status, self._content_type, b"".join(self._parts)))

    def refuse(self, refusal: Refused, *, fields: Iterable[tuple[str, str]] = ()) -> None:
        # Also where an answer had begun: none of it was sent to anybody.
        self._tell(refusal)

    def cut(self) -> None:
        self._stop()
        self._tell(Refused(Reason.GATEWAY_ERROR, "The gateway failed to serve this request."))

    def _tell(self, told: Told | Refused) -> None:
        self.begun = self.ended = True
        self.source = None
        if not self.whole.done():
            self.whole.set_result(told)


Begin = Callable[[SharedReply], None]
"""Has an answer generated; `reply.task` is the task that does."""


class Crowds:
    """Who waits for which answer."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, SharedReply] = {}
        self._members: Counter[SharedReply] = Counter()

    def whose(self, key: Hashable) -> str | None:
        """The id of the request under way whose answer one with this key would share."""
        shared = self._by_key.get(key)
        return None if shared is None else shared.request_id

    async def answer(self, key: Hashable, asked: Asked, reply: Reply, begin: Begin) -> Told | Refused:
        """Answer one client, and return what it was told.

        Requests with the same key are alike; where none is under way, `begin` is called.
        """
        shared = self._by_key.get(key)
        joined = self.whose(key)
        if shared is None:
            shared = self._by_key[key] = SharedReply(asked, reply)
            begin(shared)
        self._members[shared] += 1
        try:
            told = await asyncio.shield(shared.whole)
        finally:
            self._leave(key, shared)
        if joined is not None:
            reply.fields += ((SHARED_HEADER, joined),)
        if isinstance(told, Refused):
            reply.refuse(told)
        else:
            reply.answer(told.status, told.body, content_type=told.content_type, fields=shared.fields)
        return told

    def _leave(self, key: Hashable, shared: SharedReply) -> None:
        self._members[shared] -= 1
        if self._members[shared] and not shared.whole.done():
            return
        if self._by_key.get(key) is shared:  # Who comes now asks anew.
            del self._by_key[key]
        if not self._members[shared]:
            del self._members[shared]
            shared.abandon()
