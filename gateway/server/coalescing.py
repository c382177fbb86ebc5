"""Coalesces identical requests in flight: their clients share one response, if the tenant's policy allows it.

Only requests with one possible response are coalesced: no streams, no random sampling, nothing that an engine stores. A
client that disconnects, even the first one, does not cancel the response of the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from gateway.http.client_request import IncomingRequest
from gateway.http.endpoints import ApiEndpoint
from gateway.http.response_writer import JSON, ResponseWriter
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Request

COALESCED_HEADER = "x-hearth-coalesced-with"
"""Response header: id of the request whose response it is."""

MAX_BUFFERED_BYTES = 64 << 20
"""Bytes of one response that is held until it is complete; a pod may send without end. Ten thousand embeddings fit."""

STORING_APIS = frozenset({Api.RESPONSES})
"""APIs whose responses engines store one by one."""


class SamplingParams(Struct):
    """Sampling parameters of a body that decide whether a response is deterministic."""

    temperature: float | None = None
    seed: int | None = None


SAMPLING_PARAMS = msgspec.json.Decoder(SamplingParams)


def is_coalescible(request: Request, body: bytes) -> bool:
    """Return whether two requests with this body would get the same response."""
    if request.stream or request.api in STORING_APIS:
        return False
    if not request.api.generates:
        return True
    try:
        sampling = SAMPLING_PARAMS.decode(body)
    except msgspec.MsgspecError:
        return False  # The engine rejects it with a reason.
    return sampling.temperature == 0 or sampling.seed is not None


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A complete response."""

    status: int
    content_type: str
    body: bytes


class BufferedResponseWriter(ResponseWriter):
    """Writes nothing; keeps a response until it is complete, for clients that share it or for the gateway itself."""

    __slots__ = ("_buffered_bytes", "_content_type", "_parts", "_status", "complete")

    def __init__(self, incoming: IncomingRequest, request_id: str, endpoint: ApiEndpoint) -> None:
        super().__init__(incoming, request_id, asyncio.Transport(), keep_alive=True, answered=lambda: None)
        self.api, self.is_anthropic = endpoint.accounted_api, endpoint.is_anthropic
        self.complete: asyncio.Future[CompleteResponse | RequestRejected] = asyncio.get_running_loop().create_future()
        self._status, self._content_type = 0, JSON
        self._parts: list[bytes] = []
        self._buffered_bytes = 0

    def answer(
        self, status: int, body: bytes, *, content_type: str = JSON, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._complete(CompleteResponse(status, content_type, body))

    def begin(self, status: int, content_type: str, first: bytes, *, length: int | None, is_stream: bool) -> None:
        self.has_started = True
        self._status, self._content_type = status, content_type
        self.send(first)

    def send(self, payload: bytes) -> None:
        self._buffered_bytes += len(payload)
        if self._buffered_bytes <= MAX_BUFFERED_BYTES:
            self._parts.append(payload)
        elif not self.has_ended:
            self._parts.clear()
            self.abandon()
            words = f"The response is longer than the {MAX_BUFFERED_BYTES} bytes that the gateway holds of one."
            self._complete(RequestRejected(Reason.POD_INVALID_RESPONSE, words))

    def end(self) -> None:
        self._complete(CompleteResponse(self._status, self._content_type, b"".join(self._parts)))

    def reject(self, rejection: RequestRejected, *, fields: Iterable[tuple[str, str]] = ()) -> None:
        # Also if a response had begun: none of it was sent to a client.
        self._complete(rejection)

    def abort(self) -> None:
        self._stop()
        self._complete(
            RequestRejected(Reason.GATEWAY_ERROR, "Internal error of the gateway; report it with the request ID.")
        )

    def _complete(self, response: CompleteResponse | RequestRejected) -> None:
        self.has_started = self.has_ended = True
        self.source = None
        if not self.complete.done():
            self.complete.set_result(response)


StartRequest = Callable[[BufferedResponseWriter], None]
"""Starts a request for this response; `reply.task` is set to its task."""


class RequestCoalescer:
    """Requests in flight by key, and the number of clients that wait for each."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, BufferedResponseWriter] = {}
        self._members: Counter[BufferedResponseWriter] = Counter()

    def leader_id(self, key: Hashable) -> str | None:
        """Return the id of the request in flight with this key, None if there is none."""
        shared = self._by_key.get(key)
        return None if shared is None else shared.request_id

    async def answer(
        self,
        key: Hashable,
        endpoint: ApiEndpoint,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        begin: StartRequest,
    ) -> CompleteResponse | RequestRejected:
        """Answer one client from the request in flight with this key; returns the response.

        Without one, `begin` is called for a new one.
        """
        joined, shared = self.leader_id(key), self._by_key.get(key)
        if shared is None:
            shared = self._by_key[key] = BufferedResponseWriter(incoming, reply.request_id, endpoint)
            begin(shared)
        self._members[shared] += 1
        try:
            response = await asyncio.shield(shared.complete)
        finally:
            self._leave(key, shared)
        if joined is not None:
            reply.headers += ((COALESCED_HEADER, joined),)
        if isinstance(response, RequestRejected):
            reply.reject(response)
        else:
            reply.answer(response.status, response.body, content_type=response.content_type, fields=shared.headers)
        return response

    def _leave(self, key: Hashable, shared: BufferedResponseWriter) -> None:
        self._members[shared] -= 1
        if self._members[shared] and not shared.complete.done():
            return
        if self._by_key.get(key) is shared:  # The next request with this key starts a new one.
            del self._by_key[key]
        if not self._members[shared]:
            del self._members[shared]
            shared.abandon()
