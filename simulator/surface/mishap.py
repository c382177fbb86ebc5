"""What a fault does to the bytes of one stream: cut, reset, silenced or damaged at the current position.

Writes to the connection itself where no HTTP library would write such a thing. Independent of the API.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Never

from aiohttp import web

from simulator.faults import Fault, FaultKind, Spot

_RESETS_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER, on with no seconds: closing tells the other side that the connection is broken."""


class CutError(Exception):
    """The stream ends here, on purpose."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__("cut")
        self.response = response


class Mishap:
    """One stream's bad luck. Asked before each event, and when the stream would end well."""

    def __init__(self, fault: Fault, request: web.Request) -> None:
        self._fault = fault
        self._request = request
        self._sent = 0
        self._is_over = False
        """A stream is damaged once."""

    async def befall(self, response: web.StreamResponse, event: bytes = b"") -> bytes:
        """Return what is sent in place of this event; b"" for no event yet. Raises CutError at the end."""
        if self._fault.kind not in _ON_THE_WIRE or not self._is_due(event):
            self._sent += bool(event)
            return event
        if self._fault.kind is FaultKind.MUTE:
            await asyncio.get_running_loop().create_future()
        if self._fault.kind in _CUTS:
            self._cut(response, event)
        return self._damaged(event)

    def befall_end(self, response: web.StreamResponse) -> None:
        """The stream is about to end well: one that is to be cut never does, however short it is."""
        if self._fault.kind in _CUTS:
            self._cut(response, b"")

    def _is_due(self, event: bytes) -> bool:
        if self._is_over or self._sent < self._fault.after_chunks:
            return False
        match self._fault.spot:
            case Spot.EVENT | Spot.FRAME:
                return bool(event)
            case Spot.CHARACTER:
                return not event.isascii()
        return bool(event) or self._fault.kind in _CUTS

    def _damaged(self, event: bytes) -> bytes:
        self._is_over = True
        if self._fault.spot is not Spot.FRAME:
            # Half an event in an intact frame: invalid JSON.
            return event[: _inside(event, self._fault.spot)] + b"\n\n"
        self._write_raw(b"no size\r\n" + event + b"\r\n")
        return b""

    def _cut(self, response: web.StreamResponse, event: bytes) -> Never:
        """Part of the event, if any, in a chunk with the full length; then no more."""
        if event and self._fault.spot is not Spot.BETWEEN:
            self._write_raw(b"%x\r\n" % len(event) + event[: _inside(event, self._fault.spot)])
        end_connection(self._request, resets=self._fault.kind is FaultKind.RESET)
        raise CutError(response)

    def _write_raw(self, text: bytes) -> None:
        if self._request.transport is not None:
            self._request.transport.write(text)


_CUTS = frozenset({FaultKind.CUT, FaultKind.RESET})
_ON_THE_WIRE = _CUTS | {FaultKind.MUTE, FaultKind.DAMAGE}


def _inside(event: bytes, spot: Spot) -> int:
    """How many bytes of an event still go out: half of them, or as far as into its first wide character."""
    if spot is not Spot.CHARACTER:
        return len(event) // 2
    return next(at for at, byte in enumerate(event) if byte > 127) + 1


def end_connection(request: web.Request, *, resets: bool = False) -> None:
    """Close it where it stands; what was written before still goes out, unless it is reset."""
    if request.transport is None:
        return
    if resets:
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS_ON_CLOSE)
    request.transport.close()
