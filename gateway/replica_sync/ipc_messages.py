"""Messages between a worker and the index process of its host: frames of MessagePack over a unix socket.

A frame is a length of four bytes, big-endian, and one message: an array that begins with the tag of the message type.
Unknown types are skipped, and so are fields beyond the known ones: during an upgrade the two processes may differ in
version. The batches inside `UpdateBatch` and `HistoryChunk` are encoded by `updates`.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
from msgspec import Struct

from tenancy.limits.leases import LeaseGrant, LeaseRequest

LENGTH_BYTES = 4

MAX_FRAME_BYTES = 96 << 20
"""Longer than any request body that a gateway accepts: a larger length is malformed."""


class BrokenFramesError(Exception):
    """The bytes read are not a sequence of frames."""


class Hello(Struct, frozen=True, array_like=True, tag=1):
    """The first message of a worker. `origin` is the replica id in its batches, drawn at every start."""

    replica_id: int


class UpdateBatch(Struct, frozen=True, array_like=True, tag=2):
    """An encoded batch of updates: from a worker its own, to a worker those of peers."""

    payload: bytes


class SnapshotRequest(Struct, frozen=True, array_like=True, tag=3):
    """To a worker: send a snapshot of your open requests, a peer has missed updates."""

    missed_s: float = 0.0
    """Send again what was placed in so many seconds."""


class GapReport(Struct, frozen=True, array_like=True, tag=4):
    """From a worker: updates of this replica were missed, request its snapshot."""

    replica_id: int
    missed_s: float = 0.0
    """How long ago the last update came that was not missed; 0 if none is known."""


class HistoryRequest(Struct, frozen=True, array_like=True, tag=6):
    """From a worker that has just started: send a chunk of history. It asks for chunks at its own pace."""

    start: int = 0


class HistoryChunk(Struct, frozen=True, array_like=True, tag=7):
    """The answer to `HistoryRequest`: old batches, oldest first, and the start of the next chunk."""

    next_start: int
    payloads: list[bytes]
    has_more: bool
    """False at the end of the history; true without payloads where it is not complete yet."""


class EngineUpdate(Struct, frozen=True, array_like=True):
    """One engine of a pod, by the name that all workers use."""

    name: str
    rank: int | None = None
    block_tokens: int | None = None


class PodUpdate(Struct, frozen=True, array_like=True):
    """A pod that may serve requests. `life` grows whenever it was seen to lose its cache."""

    url: str
    life: int
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    """Those of `models` that are LoRA adapters."""
    bases: tuple[str, ...]
    """Those that are not."""
    engines: tuple[EngineUpdate, ...]


class FleetUpdate(Struct, frozen=True, array_like=True, tag=16):
    """From a worker, on connecting and on every change: the pods whose KV events to follow."""

    pods: tuple[PodUpdate, ...]


class LookupRequest(Struct, frozen=True, array_like=True, tag=17):
    """From a worker: look up how many tokens of this prompt engines hold."""

    ticket: int
    api: str
    model: str
    body: bytes


class LookupResponse(Struct, frozen=True, array_like=True, tag=18):
    """The answer to a lookup, without engines that hold nothing or are unreliable. `why`: the reason of a failure."""

    ticket: int
    prompt_tokens: int = 0
    hits: tuple[tuple[str, int, float], ...] = ()
    """(engine, cached tokens, seconds to load them) each."""
    reason: str = ""


class LookupStep(IntEnum):
    """The progress of a request that was looked up."""

    PLACED = 0
    COMPUTED = 1
    ANSWERED = 2
    LEFT = 3
    """It has left the engine; it may be placed on another."""
    ENDED = 4


class LookupProgress(Struct, frozen=True, array_like=True, tag=19):
    """From a worker: the progress of a request, at its end with the token counts of the engine."""

    ticket: int
    step: int
    engine: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None


class FollowedEngines(Struct, frozen=True, array_like=True, tag=20):
    """To every worker, on every change: followed engines, and why their events are unreliable ('' if reliable)."""

    unreliable: dict[str, str]


class LeaseRequestMessage(Struct, frozen=True, array_like=True, tag=24):
    """From a worker: renew its leases of the limits of one account, or release them (`leaves`)."""

    ticket: int
    path: str
    holder: str
    requests: tuple[LeaseRequest, ...]
    releases: bool = False


class LeaseGrantMessage(Struct, frozen=True, array_like=True, tag=25):
    """The grants, in the order of the requests."""

    ticket: int
    grants: tuple[LeaseGrant, ...]


IpcMessage = (
    Hello
    | UpdateBatch
    | SnapshotRequest
    | GapReport
    | HistoryRequest
    | HistoryChunk
    | FleetUpdate
    | LookupRequest
    | LookupResponse
    | LookupProgress
    | FollowedEngines
    | LeaseRequestMessage
    | LeaseGrantMessage
)
"""A new message type needs a tag that was never used before."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[IpcMessage] = msgspec.msgpack.Decoder(IpcMessage)


def encode_frame(message: IpcMessage) -> bytes:
    """Encode a message as a frame."""
    encoded = _ENCODER.encode(message)
    return len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded


def decode_message(body: bytes | memoryview) -> IpcMessage | None:
    """Decode a frame without its length. None where its type is unknown. Raises `BrokenFramesError`."""
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenFramesError(str(error)) from None


class FrameDecoder:
    """Splits the bytes of a connection into frames."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = LENGTH_BYTES
        """Bytes needed for the next frame, as far as known."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Take bytes that were read. Returns the frames they complete, without lengths. Raises `BrokenFramesError`."""
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held < self._wanted:
            return []
        held, start = b"".join(self._pieces), 0
        frames: list[bytes] = []
        while True:
            begin = start + LENGTH_BYTES
            length = int.from_bytes(held[start:begin], "big") if begin <= len(held) else 0
            if length > self._max_bytes:
                raise BrokenFramesError(f"a frame of {length} bytes")
            end = begin + length
            if end > len(held):
                break
            frames.append(held[begin:end])
            start = end
        self._pieces, self._held, self._wanted = [held[start:]], len(held) - start, end - start
        return frames
