"""What gateways exchange within `SupplyUpdate`: the new pods to which each replays, and which are done. No text."""

from __future__ import annotations

import msgspec
from msgspec import Struct

MAX_PODS = 1_024
"""Of each list."""


class WarmupFigures(Struct, array_like=True, tag=3, gc=False, frozen=True):
    """The new pods of one gateway. Its tag tells it from the messages of `gateway/scaling/figures.py`."""

    claimed: tuple[str, ...] = ()
    """URLs of the pods to which it replays, or will when it has room."""
    done: tuple[str, ...] = ()
    """URLs of pods that have taken load recently."""
    is_leaving: bool = False
    has_prompts: bool = False
    """Whether it has anything to replay: one that clients do not reach owns no pods."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(WarmupFigures)


def encode(figures: WarmupFigures) -> bytes:
    """Encode a message for `SupplyUpdate`."""
    return _ENCODER.encode(figures)


def decode(payload: bytes) -> WarmupFigures | None:
    """Decode the payload of a `SupplyUpdate`; None where it is another message, or cannot be read."""
    try:
        figures = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return figures if len(figures.claimed) <= MAX_PODS and len(figures.done) <= MAX_PODS else None
