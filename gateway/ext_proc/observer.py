"""A second filter that shows us an answer and waits for nothing we say: off the way of every byte, and sees all.

It is joined to the exchange that picked the pod by the request id which that one has set; a client cannot forge it.
"""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import DecodeError

from gateway.ext_proc.http2.stream import Stream
from gateway.ext_proc.messages_pb2 import ProcessingRequest
from gateway.ext_proc.names import REQUEST_ID
from gateway.ext_proc.response_side import AnswerSide, head_of


class Observed(Protocol):
    """An exchange, as whoever shows its answer sees it."""

    is_observed: bool

    @property
    def answer(self) -> AnswerSide: ...
    def observed_no_more(self) -> None:
        """Nobody shows its answer any more."""
        ...


class Observer:
    """One observed answer. What it says is never heard, so it says nothing."""

    __slots__ = ("_exchange", "_stream")

    def __init__(self, stream: Stream, exchange: Observed | None) -> None:
        self._stream = stream
        self._exchange = exchange
        if exchange is not None:
            exchange.is_observed = True

    def take(self, message: bytes) -> None:
        if self._exchange is None:
            return
        try:
            told = ProcessingRequest.FromString(message)
        except DecodeError:
            return
        answer = self._exchange.answer
        kind = told.WhichOneof("request")
        if kind == "response_headers":
            answer.show(head_of(told.response_headers.headers))
            if told.response_headers.end_of_stream:
                answer.end_seen()
        elif kind == "response_body":
            answer.feed(told.response_body.body, ends=told.response_body.end_of_stream)
        elif kind == "response_trailers":
            answer.end_seen()

    def ended(self) -> None:
        self._stop()
        self._stream.finish()

    def lost(self) -> None:
        self._stop()

    def overfull(self) -> None:
        self._stop()
        self._stream.finish()

    def check(self, now_s: float) -> None:
        """It lasts as long as its answer."""

    def leave(self) -> None:
        """It ends with its answer."""

    def _stop(self) -> None:
        """Its end, not that of the exchange, is the end of what is observed."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.observed_no_more()


def request_id_of(told: ProcessingRequest) -> str:
    """The id that a request carries."""
    said = (header for header in told.request_headers.headers.headers if header.key == REQUEST_ID)
    header = next(said, None)
    return "" if header is None else header.raw_value.decode("latin-1") or header.value
