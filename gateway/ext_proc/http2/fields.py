"""Which header fields make a request or its trailers malformed (RFC 9113, sections 8.1 to 8.3). Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAME = re.compile(rb"[!-9;-@\[-~]+")
"""Visible ASCII without upper case and without the colon (section 8.2.1)."""
NOT_IN_VALUES = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")

OF_CONNECTIONS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
"""Fields of HTTP/1 connections, which mean nothing here (section 8.2.2)."""

OF_REQUESTS = frozenset((b":method", b":scheme", b":path", b":authority"))
LONGEST_LENGTH = 19
"""Digits of a content-length."""


def request_fault(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """Return why the fields are no well-formed request, or an empty string where they are one."""
    pseudo: dict[bytes, bytes] = {}
    has_regular = False
    lengths: set[bytes] = set()
    for name, value in fields:
        if NOT_IN_VALUES.search(value):
            return "a field's value holds a control character or begins or ends with a space"
        if name[:1] == b":":
            if has_regular:
                return "a pseudo-header field after a regular one"
            if name not in OF_REQUESTS or name in pseudo:
                return "a pseudo-header field that is unknown or repeated"
            pseudo[name] = value
            continue
        has_regular = True
        if fault := _regular_fault(name, value):
            return fault
        if name == b"content-length":
            lengths.add(value)
    if len(lengths) > 1 or not all(value.isdigit() and len(value) <= LONGEST_LENGTH for value in lengths):
        return "a content-length that is not one number"
    return _pseudo_fault(pseudo)


def trailers_fault(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """Return why the fields are no well-formed trailers, or an empty string where they are."""
    for name, value in fields:
        if NOT_IN_VALUES.search(value):
            return "a field's value holds a control character or begins or ends with a space"
        if fault := _regular_fault(name, value):
            return fault
    return ""


def _regular_fault(name: bytes, value: bytes) -> str:
    if NAME.fullmatch(name) is None:
        return "a field's name holds a character that no name may hold"
    if name in OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        return "a field of HTTP/1 connections"
    return ""


def _pseudo_fault(pseudo: dict[bytes, bytes]) -> str:
    if pseudo.get(b":method") == b"CONNECT":
        is_whole = b":authority" in pseudo and b":scheme" not in pseudo and b":path" not in pseudo
        return "" if is_whole else "a CONNECT with other pseudo-header fields than its own"
    if not all(pseudo.get(name) for name in (b":method", b":scheme", b":path")):
        return "a pseudo-header field is missing or empty"
    path = pseudo[b":path"]
    if path[:1] != b"/" and not (path == b"*" and pseudo[b":method"] == b"OPTIONS"):
        return "a path that does not begin with a slash"
    return ""
