"""One streamed chat completion as a client takes it in: when its first token came, how it ended, what it says it took.

Independent of the request's content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

TAIL_BYTES = 4096
"""What is kept of an answer: more than its last events are."""

EVENT = b"data:"
"""What every event begins with."""

ANSWER_TIMEOUT_S = 900.0


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """As OpenAI's APIs tell it."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Complaint(msgspec.Struct):
    message: str = ""
    code: str | int | None = None


class Event(msgspec.Struct):
    """What matters of an event of a stream, or of an answer that is an error."""

    usage: Usage | None = None
    error: Complaint | str | None = None

    @property
    def description(self) -> str:
        """Of its error."""
        return str(self.error.code or self.error.message) if isinstance(self.error, Complaint) else str(self.error)


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are the clock's. `failure` is empty where the whole answer came."""

    first_token_at: float | None
    ended_at: float
    usage: Usage | None = None
    failure: str = ""
    status: int = 0
    """Of its head; 0 where none came."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def receipt(self) -> str | None:
        """The name of our own gateway's receipt."""
        return self.headers.get("x-hearth-request-id")


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    body: bytes,
    clock: Callable[[], float],
    own_headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request, with headers of its own where it has any, and take its answer in."""
    first, tail, status, headers = None, b"", 0, dict[str, str]()
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    sent = {"Content-Type": "application/json", **(own_headers or {})}
    try:
        async with client.post(url, data=body, headers=sent, timeout=timeout) as answer:
            status, headers = answer.status, {name.lower(): value for name, value in answer.headers.items()}
            async for piece in answer.content.iter_any():
                tail = keep_end(tail, piece)
                if first is None and EVENT in tail:
                    # Before it there may be comments: some routers send them so that clients do not time out.
                    first = clock()
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(first, clock(), None, type(error).__name__, status, headers)
    if status != 200:
        return Answer(None, clock(), None, f"{status} {_read_event(tail).description}", status, headers)
    usage, failure = _ending(tail)
    return Answer(first, clock(), usage, failure, status, headers)


def keep_end(tail: bytes, piece: bytes) -> bytes:
    """The end of what has come: events may be cut anywhere."""
    return (tail + piece)[-TAIL_BYTES:]


def _ending(tail: bytes) -> tuple[Usage | None, str]:
    """What the end of a stream tells: the usage, and what is wrong with it."""
    usage, failure = None, "ended without its end mark"
    for event in reversed(tail.split(b"\n\n")):
        if event == b"data: [DONE]":
            failure = ""
        elif event.startswith(b"data: {"):
            chunk = _read_event(event[6:])
            usage = chunk.usage
            if chunk.error is not None:
                failure = f"error in the stream: {chunk.description}"
            break
    return usage, failure


def _read_event(text: bytes) -> Event:
    try:
        return msgspec.json.decode(text, type=Event)
    except msgspec.DecodeError:
        return Event(error="unreadable")
