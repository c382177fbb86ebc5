"""What a worker and the warmth process of its host say to each other: frames of MessagePack over a unix socket.

A frame is its length in four bytes, big end first, and one message: an array that begins with the message's tag. Words
that the reader does not know are passed over, and so are fields behind those it knows: the two may be of neighbouring
versions while a host is upgraded. Knows nothing of sockets, and nothing of what a batch of news says.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
from msgspec import Struct

from tenancy.limits.leases import Ask, Granted

LENGTH_BYTES = 4

MOST_FRAME_BYTES = 96 << 20
"""Longer than any body that a gateway lets in: a length beyond it is no length of ours."""


class BrokenFramesError(Exception):
    """What was read is no sequence of frames: the connection is of no use any more."""


class Hello(Struct, frozen=True, array_like=True, tag=1):
    """A worker's first word. `origin` stands in all of its news; a worker that starts again has another."""

    origin: int


class Batch(Struct, frozen=True, array_like=True, tag=2):
    """News of one origin, encoded: a worker's own on the way there, others' on the way back."""

    payload: bytes


class Restate(Struct, frozen=True, array_like=True, tag=3):
    """To a worker: somebody has missed some of your news; say what you have open."""


class Missed(Struct, frozen=True, array_like=True, tag=4):
    """From a worker: I have missed some of that origin's news; have it say what it has open."""

    origin: int


class Recall(Struct, frozen=True, array_like=True, tag=6):
    """From a worker that has just come: what was said before? Asked piece by piece, so that it comes at its pace."""

    start: int = 0


class Past(Struct, frozen=True, array_like=True, tag=7):
    """The answer: some old batches, oldest first, and from where to ask on."""

    following: int
    payloads: list[bytes]
    has_more: bool
    """False where this was all; true without payloads where it is not all here yet."""


class EngineTold(Struct, frozen=True, array_like=True):
    """One engine of a pod, by the name it has in every worker."""

    name: str
    rank: int | None = None
    block_tokens: int | None = None


class PodTold(Struct, frozen=True, array_like=True):
    """A pod that may serve requests. `life` grows whenever it was seen to have lost its cache."""

    url: str
    life: int
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    """Those of `models` that are LoRA adapters."""
    bases: tuple[str, ...]
    """And those that are none."""
    engines: tuple[EngineTold, ...]


class FleetTold(Struct, frozen=True, array_like=True, tag=16):
    """From a worker, on connecting and whenever it changes: whose KV events to follow."""

    pods: tuple[PodTold, ...]


class SightAsked(Struct, frozen=True, array_like=True, tag=17):
    """From a worker: what do engines hold of this prompt?"""

    ticket: int
    api: str
    model: str
    body: bytes


class SightGiven(Struct, frozen=True, array_like=True, tag=18):
    """The answer. Engines that hold nothing, or are in doubt, are left out; `why`: nothing could be seen at all."""

    ticket: int
    prompt_tokens: int = 0
    seen: tuple[tuple[str, int, float], ...] = ()
    """(engine, tokens it holds, seconds until they can be used)."""
    why: str = ""


class Step(IntEnum):
    """What became of a request that was seen."""

    PLACED = 0
    COMPUTED = 1
    ANSWERED = 2
    LEFT = 3
    """The engine it was placed on; it may be placed on another."""
    OVER = 4


class SightMoved(Struct, frozen=True, array_like=True, tag=19):
    """From a worker: where a request is on its way, and in the end what it really took."""

    ticket: int
    step: int
    engine: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None


class EnginesFollowed(Struct, frozen=True, array_like=True, tag=20):
    """To every worker, when it changes: whose events are followed, and why they do not decide ('' where they do)."""

    doubts: dict[str, str]


class SlicesAsked(Struct, frozen=True, array_like=True, tag=24):
    """From a worker: its slices of the limits of one account, anew; or that it gives them up."""

    ticket: int
    path: str
    who: str
    asks: tuple[Ask, ...]
    leaves: bool = False


class SlicesGranted(Struct, frozen=True, array_like=True, tag=25):
    """The answer, in the order of the asks."""

    ticket: int
    grants: tuple[Granted, ...]


Message = (
    Hello
    | Batch
    | Restate
    | Missed
    | Recall
    | Past
    | FleetTold
    | SightAsked
    | SightGiven
    | SightMoved
    | EnginesFollowed
    | SlicesAsked
    | SlicesGranted
)
"""Whoever adds a message gives it a tag that was never used before."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def framed(message: Message) -> bytes:
    """A message as a frame."""
    said = _ENCODER.encode(message)
    return len(said).to_bytes(LENGTH_BYTES, "big") + said


def read_message(said: bytes | memoryview) -> Message | None:
    """The message of a frame without its length, None where it is not known here. Raises `BrokenFramesError`."""
    try:
        return _DECODER.decode(said)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenFramesError(str(error)) from None


class Frames:
    """Cuts what a connection reads, however it comes in pieces, into frames."""

    def __init__(self, most_bytes: int = MOST_FRAME_BYTES) -> None:
        self._most = most_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = LENGTH_BYTES
        """How much must be held before there is something to do."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Take what was read; returns every frame that it completes, without its length. Raises `BrokenFramesError`."""
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held < self._wanted:
            return []
        held, start = b"".join(self._pieces), 0
        frames: list[bytes] = []
        while True:
            begin = start + LENGTH_BYTES
            length = int.from_bytes(held[start:begin], "big") if begin <= len(held) else 0
            if length > self._most:
                raise BrokenFramesError(f"a frame of {length} bytes")
            end = begin + length
            if end > len(held):
                break
            frames.append(held[begin:end])
            start = end
        self._pieces, self._held, self._wanted = [held[start:]], len(held) - start, end - start
        return frames
