"""Posts export requests over OTLP/HTTP, on one kept connection. Blocks: it runs in the exporter's thread."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from urllib.parse import SplitResult, urlsplit

from gateway.tracing.exporter import ExportResult

CONTENT_TYPE = "application/x-protobuf"

RETRYABLE = frozenset({429, 502, 503, 504})
"""Statuses after which OTLP lets a client send the same request again."""

MAX_ANSWER_BYTES = 64 << 10

MAX_ERROR_CHARS = 200
"""Of an error that is logged: a receiver's malformed answer is part of it."""

MAX_STEPS = 3
"""An export takes at most so many times the timeout of one step."""

TRACES_PATH = "/v1/traces"


class OtlpSender:
    """Sends to one endpoint. `rejected_spans` reads a receiver's answer."""

    def __init__(
        self, endpoint: str, read_headers: Callable[[], Mapping[str, str]], rejected_spans: Callable[[bytes], int]
    ) -> None:
        """`read_headers` is called for each connection: a credential may have been replaced."""
        self._url: SplitResult = urlsplit(endpoint)
        self._path = traces_path(self._url.path)
        self._read_headers = read_headers
        self._rejected_spans = rejected_spans
        self._headers: dict[str, str] = {}
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._context = ssl.create_default_context() if self._url.scheme == "https" else None

    def send(self, body: bytes, timeout_s: float) -> ExportResult:
        """Post an export request. Raises nothing.

        Each step of it takes `timeout_s` at most, and all of it `MAX_STEPS` times that: a receiver that answers byte by
        byte is cut off.
        """
        watch = Timer(MAX_STEPS * timeout_s, self.abort)
        watch.daemon = True
        watch.start()
        try:
            return self._send(body, timeout_s)
        finally:
            watch.cancel()

    def _send(self, body: bytes, timeout_s: float) -> ExportResult:
        """Post an export request, again where a kept connection was closed meanwhile."""
        was_kept = self._connection is not None
        try:
            return self._post(body, timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            if not was_kept or isinstance(error, TimeoutError):
                return ExportResult(_words(error), may_retry=True)
        try:  # A receiver may close a connection that is idle.
            return self._post(body, timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            return ExportResult(_words(error), may_retry=True)

    def close(self) -> None:
        """Close the connection; the next export opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._socket = None

    def abort(self) -> None:
        """End an export that waits, from another thread: its socket reports an error."""
        if (opened := self._socket) is not None:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _post(self, body: bytes, timeout_s: float) -> ExportResult:
        connection = self._connection
        if connection is None:
            self._headers = {"content-type": CONTENT_TYPE, "user-agent": "hearth-gateway", **self._read_headers()}
            connection = self._connection = self._open(timeout_s)
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        else:
            connection.connect()
        # The connection forgets its socket while it reads the last answer.
        self._socket = connection.sock
        connection.request("POST", self._path, body, self._headers)
        response = connection.getresponse()
        answer = response.read(MAX_ANSWER_BYTES)
        if not response.isclosed() or response.will_close or response.status >= 400:
            self.close()
        return self._result(response, answer)

    def _open(self, timeout_s: float) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._context is None:
            return HTTPConnection(host, port, timeout=timeout_s)
        return HTTPSConnection(host, port, timeout=timeout_s, context=self._context)

    def _result(self, response: HTTPResponse, answer: bytes) -> ExportResult:
        status = response.status
        if 200 <= status < 300:
            return ExportResult(rejected_spans=self._rejected_spans(answer) if answer else 0)
        after = response.headers.get("retry-after", "")
        return ExportResult(
            f"the receiver answered with status {status}",
            may_retry=status in RETRYABLE,
            retry_after_s=float(after) if after.isascii() and after.isdigit() and len(after) < 5 else None,
        )


def traces_path(path: str) -> str:
    """Return the path of traces below an endpoint; one that ends in it stays as it is."""
    path = path.rstrip("/")
    return path if path.endswith(TRACES_PATH) else f"{path}{TRACES_PATH}"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
