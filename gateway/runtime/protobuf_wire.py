"""Protobuf's encoding of a field that holds bytes, for messages that are put together from encoded parts.

Protobuf merges messages that follow one another, so that what never changes is encoded once.
"""

from __future__ import annotations

LENGTH = 2
"""Wire type of fields whose content is preceded by its length."""

PAYLOAD = 0x7F


def encode_field(number: int, *contents: bytes) -> bytes:
    """Encode a field that holds bytes, text or a message. `number` is less than 16."""
    content = b"".join(contents)
    return b"".join((bytes((number << 3 | LENGTH,)), varint(len(content)), content))


def varint(value: int) -> bytes:
    """Encode a number, seven bits per byte."""
    if value <= PAYLOAD:
        return bytes((value,))
    text = bytearray()
    while value > PAYLOAD:
        text.append(value & PAYLOAD | 0x80)
        value >>= 7
    text.append(value)
    return bytes(text)
