"""The request as a pod is sent it: its head, and the fields that are added to the client's body."""

from __future__ import annotations

from collections.abc import Callable

from gateway.http.client_request import IncomingRequest
from gateway.http.request_headers import MAX_TRACE_BYTES
from gateway.limits.accounts import RequestMeter
from gateway.relay.upstream_pool import UpstreamAddress, UpstreamPool
from routing.pods import Engine
from routing.reading import with_fields
from routing.reading.rewriting import with_output_limit
from routing.request import Api, Request

TakesPriority = Callable[[str], bool]
"""Whether the pod at a URL schedules by priority."""

PodKeys = Callable[[str], str | None]
"""Pod URL to the API key it wants, None where it wants none."""

APIS_WITH_PRIORITY = frozenset(set(Api) - {Api.MESSAGES, Api.TOKENIZE, Api.DETOKENIZE})
"""APIs with a field `priority`. vLLM 0.32 has none in Anthropic's; a header says it there, which older ones ignore."""

DOWNGRADED_HEADER = "x-hearth-downgraded-from"
CASCADE_MODEL_HEADER = "x-hearth-cascade-model"
"""Response header: the model of a cascade that has answered."""

MAX_TOKENS_HEADER = "x-hearth-max-tokens"
"""Response header: tokens that the answer may have, where limits allow less than the client."""

TRACE_HEADERS = (b"traceparent", b"tracestate")


class UpstreamRequestWriter:
    """Writes the requests that one gateway sends to pods."""

    def __init__(self, pool: UpstreamPool, key_of: PodKeys, takes_priority: TakesPriority) -> None:
        self._pool = pool
        self._key_of = key_of
        self._takes_priority = takes_priority

    def write(
        self, asked: IncomingRequest, engine: Engine, request: Request, *, path: str, body: bytes, request_id: str
    ) -> list[bytes]:
        """Return head and body of a request to this engine. Of the client's headers only its trace gets through."""
        pod = engine.pod
        address = self._pool.address(pod)
        # Only where it is honoured: elsewhere it may be an error. Higher goes first here, lower there.
        priority = -request.priority if request.priority and self._takes_priority(pod) else 0
        header = ""
        if priority and request.api in APIS_WITH_PRIORITY:
            body = with_fields(body, b'"priority":%d' % priority)
        elif priority and request.api is Api.MESSAGES:
            header = f"x-vllm-priority: {priority}\r\n"
        return [self._head(asked, address, engine, path, len(body), request_id, header), body]

    def _head(
        self,
        asked: IncomingRequest,
        address: UpstreamAddress,
        engine: Engine,
        path: str,
        length: int,
        request_id: str,
        more: str,
    ) -> bytes:
        head = (
            f"{asked.method} {address.base}{path} HTTP/1.1\r\nhost: {address.authority}\r\n"
            f"x-request-id: {request_id}\r\naccept: application/json, text/event-stream\r\n"
        )
        if length:
            head += f"content-type: application/json\r\ncontent-length: {length}\r\n"
        elif asked.method == "POST":
            head += "content-length: 0\r\n"
        key = self._key_of(engine.pod)
        if key is not None:
            head += f"authorization: Bearer {key}\r\n"
        if engine.rank is not None:
            head += f"x-data-parallel-rank: {engine.rank}\r\n"
        head += more
        for name in TRACE_HEADERS:
            value = asked.headers.get(name)
            if value and len(value) <= MAX_TRACE_BYTES:
                head += f"{name.decode()}: {value.decode('latin-1')}\r\n"
        return f"{head}\r\n".encode("latin-1")


def with_token_cap(tab: RequestMeter | None, body: bytes) -> bytes:
    """Return the body with its limits on the answer lowered to what the caller's accounts allow."""
    if tab is None or tab.max_tokens is None:
        return body
    return with_output_limit(tab.request.api, body, tab.max_tokens)
