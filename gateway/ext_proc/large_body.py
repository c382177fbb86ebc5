"""A large body, cut out of the message that carries it: to build the message would copy it twice more."""

from __future__ import annotations

from gateway.ext_proc.protobuf import first_field

LARGE_BYTES = 8 << 10

REQUEST_BODY, RESPONSE_BODY = 4, 5
"""Of a `ProcessingRequest`. Envoy writes fields in the order of their numbers, so these come first."""
BODY = 1
ENDS = {b"": False, b"\x10\x01": True, b"\x10\x00": False}
"""What stands behind the body in an `HttpBody`: whether it ends the stream."""


def large_body(message: bytes) -> tuple[int, bytes, bool] | None:
    """Which body it is a piece of, the piece, and whether it is the last; None: read the message whole."""
    phase = message[0] >> 3
    if phase not in (REQUEST_BODY, RESPONSE_BODY):
        return None
    outer = first_field(message, 0, len(message), phase)
    inner = None if outer is None else first_field(message, *outer, BODY)
    if outer is None or inner is None:
        return None
    ends = ENDS.get(message[inner[1] : outer[1]])
    return None if ends is None else (phase, message[slice(*inner)], ends)
