"""The client's side of an answer that Envoy carries: the same `Reply`, whose words go to Envoy instead of a socket.

Where Envoy shows us an answer without letting us change it, nothing of what is written here goes anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, cast

from gateway.http.client_request import Asked
from gateway.http.response_writer import JSON, UNBUFFERED, Reply

Fields = list[tuple[str, str]]


class Speaker(Protocol):
    """Whoever speaks to Envoy about one request."""

    def say(self, status: int, fields: Fields, body: bytes) -> None:
        """Answer instead of a pod, where there is no answer yet."""
        ...

    def begin(self, fields: Fields) -> None:
        """The pod's answer goes to the client from here on, with these fields on its head."""
        ...

    def write(self, piece: bytes) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None: ...


class EnvoyReply(Reply):
    """The answer to one request behind Envoy."""

    __slots__ = ("_speaker",)

    def __init__(self, asked: Asked, request_id: str, speaker: Speaker) -> None:
        # Of a transport a reply wants to write, and to abort; without chunks it writes what it is given.
        transport = cast("asyncio.Transport", speaker)
        super().__init__(asked, request_id, transport, keep_alive=True, answered=_nothing)
        self._speaker = speaker

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.begun = True
        told = [("content-type", content_type), *self.head_fields(), *fields]
        self._end()
        self._speaker.say(status, told, body if self._wants_body else b"")

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        self.begun = True
        self.is_stream = is_stream
        self._speaker.begin([*self.head_fields(), *(UNBUFFERED if is_stream else ())])
        if first:
            self._write(first)

    def end(self) -> None:
        self._speaker.end()
        self._end()

    def head_fields(self) -> Fields:
        """What we say on the head of every answer."""
        told = [("x-request-id", self._echoed_id)]
        if self.api is not None:
            told.append(("x-hearth-receipt", self.request_id))
        return [*told, *self.fields]


def _nothing() -> None:
    """Envoy ends the stream; there is no next request on it."""
