"""Parses the bytes of a client connection into requests. llhttp in strict mode decides what a valid request is.

What llhttp does not bound is bounded here: the head, and framing (trailers, chunk sizes, chunk extensions). The parser
joins the pieces of a trailer's value by copying, so its cost without a bound would be quadratic in the length.

After a rejection the rest of the connection cannot be parsed reliably: the reader ignores all further input
(`ignores_input`). Does no I/O, reads no clock and writes no response.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.config.limits import Limits
from gateway.http.client_request import KEPT_HEADERS, BodyBudget, IncomingRequest, head_too_large, url_too_long
from routing.rejection import Reason, RequestRejected

MAX_DROPPED_BODY_BYTES = 64 << 10
"""Body of a rejected request that is read and dropped to keep its connection open; a longer one closes it."""

MAX_FRAMING_BYTES = 16 << 10
"""Trailers, chunk extensions and chunk sizes of one request, beyond the allowance for ordinary chunks."""

FRAMING_BYTES_PER_BODY_BYTE = 16
"""Allowance: more than size line and line end of a chunk of one byte, also where the size has leading zeros."""


class RequestListener(Protocol):
    """Receives the events of a `RequestReader`."""

    def on_request_begin(self) -> None:
        """The first byte of a request was read."""
        ...

    def on_head(self, incoming: IncomingRequest) -> None:
        """The head is complete, and none of the body is kept yet. May raise `RequestRejected`."""
        ...

    def on_request(self, incoming: IncomingRequest) -> None:
        """The request is complete, or was rejected before its end (`incoming.is_incomplete`)."""
        ...


class RequestReader:
    """Parser state of one connection; holds at most one incomplete request."""

    def __init__(
        self, listener: RequestListener, budget: BodyBudget, limits: Limits, kept: AbstractSet[bytes] = KEPT_HEADERS
    ) -> None:
        """`kept`: lower-case names of the headers to keep; the others count against the limits and are dropped."""
        self._listener = listener
        self._budget = budget
        self._limits = limits
        self._kept = kept
        self._parser = HttpRequestParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        """Headers of the head that is being read, as written."""
        self._raw: bytes | bytearray | memoryview = b""
        """Input from the earliest point where the current request can begin; kept only until its head is complete."""
        self._is_first_in_raw = True
        self.reading: IncomingRequest | None = None
        self.ignores_input = False
        self.is_closed = False

    @property
    def missing_bytes(self) -> int:
        """Bytes that the current body still lacks; 0 where there is no body, or its length is unknown."""
        incoming = self.reading
        if incoming is None or incoming.declared_bytes is None:
            return 0
        return incoming.declared_bytes - incoming.body_bytes

    def feed(self, piece: bytes | memoryview) -> None:
        """Parse more input, with a call of the listener for each event in it."""
        incoming, body_bytes, unparsed = self.reading, 0, piece
        if incoming is None:
            self._raw, self._is_first_in_raw = piece, True
        elif incoming.has_head:
            self._raw, self._is_first_in_raw, body_bytes = piece, False, incoming.body_bytes
        else:
            self._bound_head(incoming, len(piece))
            if not isinstance(self._raw, bytearray):
                self._raw = bytearray(self._raw)
            self._raw += piece
            incoming = None
        while unparsed and not self.ignores_input:
            try:
                self._parser.feed_data(unparsed)
            except HttpParserUpgrade as upgrade:
                unparsed = unparsed[upgrade.args[0] :]
                self._decline_upgrade()
                continue
            except HttpParserCallbackError:
                raise
            except HttpParserError:
                self._reject_syntax()
            break
        reading = self.reading
        if reading is None or reading.has_head:
            self._raw = b""
        if incoming is not None and reading is incoming and incoming.declared_bytes is None:
            self._bound_framing(incoming, len(piece), incoming.body_bytes - body_bytes)

    def reject(self, rejection: RequestRejected) -> None:
        """Reject the request that is being read, and ignore further input."""
        incoming, self.reading = self.reading or IncomingRequest(), None
        incoming.drop_body(self._budget)
        incoming.rejection = rejection
        incoming.keep_alive = False
        incoming.is_incomplete = True
        self.ignores_input = True
        self._listener.on_request(incoming)

    def close(self) -> None:
        """Drop the request that is being read, and ignore further input."""
        if self.reading is not None:
            self.reading.drop_body(self._budget)
        self.reading = None
        self.ignores_input = self.is_closed = True
        # The parser holds our methods and the listener holds us: without both, no closed connection is a cycle.
        vars(self).pop("_parser", None)
        vars(self).pop("_listener", None)

    # -- callbacks of llhttp ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.ignores_input or self.reading is not None:  # After a declined upgrade, in the middle of a request.
            return
        self.reading = IncomingRequest()
        self._listener.on_request_begin()

    def on_url(self, url: bytes) -> None:
        incoming = self.reading
        if incoming is None or incoming.has_head:
            return
        incoming.target += url
        if len(incoming.target) > self._limits.max_url_bytes:
            self.reject(url_too_long(self._limits))

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self.reading
        if incoming is None or incoming.has_head:  # Trailers are dropped.
            return
        headers = self._headers
        headers.append((name, value))
        if len(headers) > self._limits.max_headers:
            max_count = self._limits.max_headers
            self.reject(RequestRejected(Reason.HEADERS_TOO_LARGE, f"There are more than {max_count} headers."))

    def on_headers_complete(self) -> None:
        incoming = self.reading
        if incoming is None or incoming.has_head:
            return
        incoming.has_head = True
        incoming.method = self._parser.get_method().decode("ascii")
        incoming.version = self._parser.get_http_version()
        incoming.keep_alive = self._parser.should_keep_alive()
        headers, self._headers = self._headers, []
        try:
            self._check_line(incoming)
            incoming.set_headers(headers, self._limits, self._kept)
            incoming.check_head(self._budget, self._limits)
        except RequestRejected as rejection:
            self.reject(rejection)
            return
        try:
            self._listener.on_head(incoming)
        except RequestRejected as rejection:
            incoming.rejection = rejection
            if incoming.expects_continue or (incoming.declared_bytes or 0) > MAX_DROPPED_BODY_BYTES:
                self.reject(rejection)

    def on_body(self, body: bytes) -> None:
        incoming = self.reading
        if incoming is None:
            return
        if incoming.rejection is None:
            try:
                incoming.add_body(body, self._budget, self._limits)
            except RequestRejected as rejection:
                self.reject(rejection)
            return
        incoming.body_bytes += len(body)
        if incoming.body_bytes > MAX_DROPPED_BODY_BYTES:
            self.reject(incoming.rejection)

    def on_message_complete(self) -> None:
        incoming = self.reading
        if incoming is None or self._parser.should_upgrade():  # With an upgrade, the body is yet to come.
            return
        self.reading = None
        self.ignores_input = not incoming.keep_alive
        self._listener.on_request(incoming)

    def _reject_syntax(self) -> None:
        """Reject what llhttp does not parse, unless a callback has already rejected it."""
        if not self.ignores_input:
            part = "body" if self.reading is not None and self.reading.has_head else "head"
            self.reject(RequestRejected(Reason.BAD_REQUEST, f"The {part} of the request is not valid HTTP/1.1."))

    # -- what llhttp does not bound or does not read ---------------------------------------------------------------

    def _bound_head(self, incoming: IncomingRequest, count: int) -> None:
        """Bound a head by its bytes: llhttp reports a header only once it is complete."""
        incoming.head_bytes += count
        if incoming.head_bytes > self._limits.max_header_bytes + self._limits.max_url_bytes:
            self.reject(head_too_large(self._limits))

    def _check_line(self, incoming: IncomingRequest) -> None:
        """Raise `RequestRejected` if the request line has more than one space between its parts: llhttp skips them."""
        line = b"%b %b HTTP/%b" % (incoming.method.encode("ascii"), incoming.target, incoming.version.encode("ascii"))
        raw = self._raw if not isinstance(self._raw, memoryview) else bytes(self._raw)
        is_first, self._is_first_in_raw = self._is_first_in_raw, False
        if raw.startswith(line):
            return
        # Empty lines may precede a request, and other requests in the same read.
        if raw.lstrip(b"\r\n").startswith(line) if is_first else line in raw:
            return
        raise RequestRejected(
            Reason.BAD_REQUEST, "Invalid request line; expected METHOD PATH VERSION, separated by single spaces."
        )

    def _bound_framing(self, incoming: IncomingRequest, count: int, body_bytes: int) -> None:
        """Count one read behind the head of a chunked request: what was not body is framing.

        Framing without body may be a trailer, whose bytes the parser keeps: a run of it has a fixed bound.
        """
        framing = count - body_bytes
        incoming.framing_bytes += framing
        incoming.framing_run_bytes = 0 if body_bytes else incoming.framing_run_bytes + framing
        allowed = MAX_FRAMING_BYTES + FRAMING_BYTES_PER_BODY_BYTE * incoming.body_bytes
        if incoming.framing_run_bytes > MAX_FRAMING_BYTES or incoming.framing_bytes > allowed:
            self.reject(incoming.rejection or framing_too_large())

    def _decline_upgrade(self) -> None:
        """Ignore the offer of another protocol, which JDK clients make with every request.

        llhttp reads no body after such a head. So a new parser is fed a head with the same framing, and reads the body.
        """
        incoming = self.reading
        if incoming is None:
            return
        if incoming.method == "CONNECT":
            self.reject(incoming.rejection or RequestRejected(Reason.UNKNOWN_PATH, "CONNECT is not supported."))
            return
        self._parser = HttpRequestParser(self)
        head = f"{incoming.method} / HTTP/1.1\r\n".encode("ascii")
        for name in (b"content-length", b"transfer-encoding"):
            if name in incoming.headers:
                head += name + b": " + incoming.headers[name] + b"\r\n"
        self._parser.feed_data(head + b"\r\n")


def framing_too_large() -> RequestRejected:
    """Return the rejection of a chunked request with too much framing."""
    return RequestRejected(
        Reason.HEADERS_TOO_LARGE,
        f"The trailers, chunk extensions and chunk sizes of the request are longer than {MAX_FRAMING_BYTES} bytes.",
    )
