"""HTTP by hand, for the contracts: how an answer is cut into chunks and when its head comes is promised too.

Knows no pod and no contract.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

Body = bytes | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `value` is None for the closing `[DONE]`."""

    name: str | None
    value: Any

    @classmethod
    def parse(cls, text: str) -> Self:
        fields = dict(line.split(": ", 1) for line in text.split("\n"))
        value = None if fields["data"] == "[DONE]" else json.loads(fields["data"])
        return cls(fields.get("event"), value)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One answer, with what the wire tells beyond its text."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    chunks: tuple[bytes, ...]
    """The body as the chunked encoding cut it; one piece when it was not chunked."""
    head_came_alone: bool
    """Nothing of the body was there yet when the head was read."""
    is_whole: bool
    """The body came to the end that its head or its last chunk announced."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Event]:
        """The server-sent events of the body."""
        return [Event.parse(text) for text in self.body.decode().split("\n\n")[:-1]]

    def values(self) -> list[Any]:
        """What the events carry."""
        return [event.value for event in self.events()]


def spell(method: str, path: str, body: Body, headers: Mapping[str, str]) -> bytes:
    """A request as it goes over the wire."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: pod", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """What is there, as it comes, until the other side closes."""
    while piece := await reader.read(1 << 20):
        yield piece


def cut(received: list[bytes]) -> Exchange:
    """An answer, from all that was read until the pod closed the connection."""
    head, _, body = b"".join(received).partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        chunks, is_whole = dechunk(body)
    else:
        chunks, is_whole = [body], len(body) == int(headers["content-length"])
    return Exchange(
        status=int(status.split(" ")[1]),
        headers=headers,
        chunks=tuple(chunks),
        head_came_alone=len(received[0]) == len(head) + 4,
        is_whole=is_whole,
    )


def dechunk(body: bytes) -> tuple[list[bytes], bool]:
    """The chunks, and whether the last of them says that it is."""
    chunks: list[bytes] = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return chunks, rest == b"\r\n"
        if rest[length : length + 2] != b"\r\n":
            break
        chunks.append(rest[:length])
        body = rest[length + 2 :]
    return chunks, False
