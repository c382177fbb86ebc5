"""Bytes of a client to requests. llhttp, in its strict mode, decides what a request is; what it refuses is refused.

What llhttp does not bound is bounded here: a head, and what stands behind the head without being body. The parser adds
up the pieces of a trailer's value by copying: without a bound its cost would grow with the square of the length.

Once something was refused, what follows on the connection cannot be told apart, or is not wanted: the reader is deaf
from then on. Knows nothing of sockets, times and answers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.config.port_limits import Limits
from gateway.http.client_request import KEPT_HEADERS, Asked, Budget, head_too_large, judge_head
from routing.rejection import Reason, Refused

UNWANTED_BODY_BYTES = 64 << 10
"""Body of a refused request that is read and dropped so that its connection can be kept; for more it is closed."""


MOST_FRAMING_BYTES = 16 << 10
"""Of a chunked request: trailers, chunk extensions and chunk sizes, beside what ordinary chunks need."""

FRAMING_BYTES_PER_BODY_BYTE = 16
"""More than the size line and the line end of a chunk of one byte, also of a size with leading zeros."""


class Listener(Protocol):
    """Who is told of requests as they are read."""

    def request_begins(self) -> None: ...

    def head_is_read(self, asked: Asked) -> None:
        """May raise `Refused`, before any of the body is kept."""
        ...

    def request_is_read(self, asked: Asked) -> None:
        """All of it; or as much as was needed to refuse it, `asked.is_cut_off` then being set."""
        ...


class RequestReader:
    """Holds at most one request that is not read to its end."""

    def __init__(
        self, listener: Listener, budget: Budget, limits: Limits, kept: AbstractSet[bytes] = KEPT_HEADERS
    ) -> None:
        """`kept`: names of the headers that mean something."""
        self._listener = listener
        self._budget = budget
        self._limits = limits
        self._kept = kept
        self._parser = HttpRequestParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        """Of the head being read."""
        self._raw: bytes | bytearray | memoryview = b""
        """What was fed since the message that is being read could have begun; kept only while its head is not there."""
        self._is_first_in_raw = True
        self.reading: Asked | None = None
        self.is_deaf = False

    @property
    def missing_bytes(self) -> int:
        """How much more of a body is sure to come; zero where its length is not known, or not yet."""
        asked = self.reading
        return 0 if asked is None or asked.declared_bytes is None else asked.declared_bytes - asked.body_bytes

    def feed(self, piece: bytes | memoryview) -> None:
        """Read on."""
        asked = self.reading
        if asked is not None and not asked.has_head:
            self._bound_head(asked, len(piece))
            if not isinstance(self._raw, bytearray):
                self._raw = bytearray(self._raw)
            self._raw += piece
        else:
            self._raw, self._is_first_in_raw = piece, asked is None
        is_chunked = asked is not None and asked.has_head and asked.declared_bytes is None
        body_bytes = asked.body_bytes if asked is not None else 0
        count = len(piece)
        self._parse(piece)
        reading = self.reading
        if reading is None or reading.has_head:
            self._raw = b""
        if is_chunked and asked is not None and reading is asked:
            self._bound_framing(asked, count, asked.body_bytes - body_bytes)

    def _parse(self, piece: bytes | memoryview) -> None:
        while piece and not self.is_deaf:
            try:
                self._parser.feed_data(piece)
            except HttpParserUpgrade as upgrade:
                piece = piece[upgrade.args[0] :]
                self._decline_upgrade()
                continue
            except HttpParserCallbackError:
                raise
            except HttpParserError:
                if not self.is_deaf:
                    part = "body" if self.reading is not None and self.reading.has_head else "head"
                    self.refuse(Refused(Reason.BAD_REQUEST, f"The {part} of the request is not valid HTTP/1.1."))
            return

    def refuse(self, refusal: Refused) -> None:
        """Cut the request being read short, and hear no more."""
        asked, self.reading = self.reading or Asked(), None
        asked.drop_body(self._budget)
        asked.refusal = refusal
        asked.keep_alive = False
        asked.is_cut_off = True
        self.is_deaf = True
        self._listener.request_is_read(asked)

    def close(self) -> None:
        """Forget what was being read, and hear no more."""
        if self.reading is not None:
            self.reading.drop_body(self._budget)
        self.reading = None
        self.is_deaf = True
        # One holds our methods, the other holds us: without both no connection that has ended waits to be collected.
        vars(self).pop("_parser", None)
        vars(self).pop("_listener", None)

    # -- what the parser tells -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_deaf or self.reading is not None:  # A declined upgrade begins anew in the middle.
            return
        self.reading = Asked()
        self._listener.request_begins()

    def on_url(self, url: bytes) -> None:
        asked = self.reading
        if asked is None or asked.has_head:
            return
        try:
            asked.add_target(url, self._limits)
        except Refused as refusal:
            self.refuse(refusal)

    def on_header(self, name: bytes, value: bytes) -> None:
        asked = self.reading
        if asked is None or asked.has_head:  # Trailers mean nothing to us.
            return
        headers = self._headers
        headers.append((name, value))
        if len(headers) > self._limits.max_headers:
            most = self._limits.max_headers
            self.refuse(Refused(Reason.HEADERS_TOO_LARGE, f"There are more than {most} headers."))

    def on_headers_complete(self) -> None:
        asked = self.reading
        if asked is None or asked.has_head:
            return
        asked.has_head = True
        asked.method = self._parser.get_method().decode("ascii")
        asked.version = self._parser.get_http_version()
        asked.keep_alive = self._parser.should_keep_alive()
        headers, self._headers = self._headers, []
        try:
            self._check_line(asked)
            asked.take_headers(headers, self._limits, self._kept)
            judge_head(asked, self._budget, self._limits)
        except Refused as refusal:
            self.refuse(refusal)
            return
        try:
            self._listener.head_is_read(asked)
        except Refused as refusal:
            asked.refusal = refusal
            if asked.expects_continue or (asked.declared_bytes or 0) > UNWANTED_BODY_BYTES:
                self.refuse(refusal)

    def on_body(self, body: bytes) -> None:
        asked = self.reading
        if asked is None:
            return
        if asked.refusal is None:
            try:
                asked.add_body(body, self._budget, self._limits)
            except Refused as refusal:
                self.refuse(refusal)
            return
        asked.body_bytes += len(body)
        if asked.body_bytes > UNWANTED_BODY_BYTES:
            self.refuse(asked.refusal)

    def on_message_complete(self) -> None:
        asked = self.reading
        if asked is None or self._parser.should_upgrade():  # With an upgrade, the body is yet to come.
            return
        self.reading = None
        self.is_deaf = not asked.keep_alive
        self._listener.request_is_read(asked)

    # -- what the parser does not bound or does not read ------------------------------------------------------------

    def _bound_head(self, asked: Asked, count: int) -> None:
        """A header is told when all of it is there: one that never ends is seen here only."""
        asked.head_bytes += count
        if asked.head_bytes > self._limits.max_header_bytes + self._limits.max_url_bytes:
            self.refuse(head_too_large(self._limits))

    def _check_line(self, asked: Asked) -> None:
        """Raise `Refused` where the request line has more than one space between its parts: llhttp skips them."""
        line = f"{asked.method} {asked.target.decode('latin-1')} HTTP/{asked.version}".encode("latin-1")
        raw = self._raw if not isinstance(self._raw, memoryview) else bytes(self._raw)
        is_first, self._is_first_in_raw = self._is_first_in_raw, False
        if raw.startswith(line):
            return
        # Empty lines may stand before a message, and others in the same read.
        if raw.lstrip(b"\r\n").startswith(line) if is_first else line in raw:
            return
        raise Refused(Reason.BAD_REQUEST, "The request line must be a method, a path and a version, one space between.")

    def _bound_framing(self, asked: Asked, count: int, body_bytes: int) -> None:
        """Count a read behind the head of a chunked message: what was not body is framing.

        Without body it may be a trailer, whose bytes the parser keeps: a run of these has a bound that does not grow.
        """
        framing = count - body_bytes
        asked.framing_bytes += framing
        asked.framing_run_bytes = 0 if body_bytes else asked.framing_run_bytes + framing
        allowed = MOST_FRAMING_BYTES + FRAMING_BYTES_PER_BODY_BYTE * asked.body_bytes
        if asked.framing_run_bytes > MOST_FRAMING_BYTES or asked.framing_bytes > allowed:
            self.refuse(asked.refusal or framing_too_large())

    def _decline_upgrade(self) -> None:
        """Read on as if the offer of another protocol had not been made: JDK clients make it with every request.

        llhttp reads no body after such a head. A new parser is told the framing of the body, and goes on from there.
        """
        asked = self.reading
        if asked is None:
            return
        if asked.method == "CONNECT":
            self.refuse(asked.refusal or Refused(Reason.UNKNOWN_PATH, "This is no tunnel."))
            return
        self._parser = HttpRequestParser(self)
        head = f"{asked.method} / HTTP/1.1\r\n".encode("ascii")
        for name in (b"content-length", b"transfer-encoding"):
            if name in asked.headers:
                head += name + b": " + asked.headers[name] + b"\r\n"
        self._parser.feed_data(head + b"\r\n")


def framing_too_large() -> Refused:
    return Refused(
        Reason.HEADERS_TOO_LARGE,
        f"The trailers, chunk extensions and chunk sizes of the request are longer than {MOST_FRAMING_BYTES} bytes.",
    )
