"""Protobuf's encoding where it is said or read too often, or is too large, to build objects of it.

Knows lengths and numbers of fields, and nothing of what they mean.
"""

from __future__ import annotations

LENGTH = 2
"""A field's content is told by its length; numbers are told otherwise."""

PAYLOAD = 0x7F


def held(number: int, *contents: bytes) -> bytes:
    """A field that holds bytes, text or a message. `number` is less than 16."""
    content = b"".join(contents)
    return b"".join((bytes((number << 3 | LENGTH,)), varint(len(content)), content))


def varint(value: int) -> bytes:
    """A number, seven bits a byte."""
    if value <= PAYLOAD:
        return bytes((value,))
    told = bytearray()
    while value > PAYLOAD:
        told.append(value & PAYLOAD | 0x80)
        value >>= 7
    told.append(value)
    return bytes(told)


def first_field(message: bytes, at: int, end: int, number: int) -> tuple[int, int] | None:
    """Where a field's content lies, if what stands from `at` to `end` begins with it; None where it does not."""
    if at >= end or message[at] != number << 3 | LENGTH:
        return None
    size, shift, at = 0, 0, at + 1
    while at < end and shift < 35:
        byte = message[at]
        size |= (byte & PAYLOAD) << shift
        at, shift = at + 1, shift + 7
        if byte <= PAYLOAD:
            return (at, at + size) if at + size <= end else None
    return None
