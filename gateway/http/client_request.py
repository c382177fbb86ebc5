"""One downstream request as far as it has been read, the checks of its head, and the memory budget of bodies.

Does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

from gateway.config.limits import Limits
from gateway.http.endpoints import ApiEndpoint
from gateway.http.request_headers import (
    CALLER_HEADERS,
    LOCAL_ONLY_HEADER,
    MODEL_HEADERS,
    RETRY_COUNT_HEADER,
    SLO_HEADERS,
)
from gateway.runtime.trace_context import RequestTrace
from routing.rejection import Reason, RequestRejected
from tenancy.tenants import ANONYMOUS_CALLER, Caller

KEPT_HEADERS = frozenset(
    (
        *(b"host", b"transfer-encoding", b"content-length", b"expect"),
        *(b"content-type", b"content-encoding"),
        *(b"authorization", b"x-api-key"),
        *(b"x-request-id", b"traceparent", b"tracestate"),
        *(b"x-session-id", b"x-claude-code-session-id", b"session-id"),
        b"x-hearth-supersedes",
        RETRY_COUNT_HEADER,
        LOCAL_ONLY_HEADER,
        *SLO_HEADERS,
        *MODEL_HEADERS,
        *CALLER_HEADERS,
    )
)
"""Headers that the gateway reads. All others count against the limits and are dropped, except those of a policy."""

HEADER_OVERHEAD_BYTES = 4
"""Colon, space and line end."""

SMALL_PIECE_BYTES = 4 << 10
"""Smaller pieces of a body are joined on arrival: an object for each would take many times its bytes."""

MAX_JOINED_BYTES = 256 << 10
"""Size at which a joined piece is not extended further, so that growing never copies much."""


class BodyBudget:
    """Bytes of request bodies that all connections together may hold in memory.

    A tenant may hold as much as is still free: alone at most half of the total, so that others always find room. One
    body of the largest size is never rejected for its tenant's share.
    """

    def __init__(self, max_bytes: int, *, max_extra_bytes: int = 0) -> None:
        """`max_bytes`: bytes in total; `max_extra_bytes`: bytes of them that each tenant may always hold."""
        self._max_bytes = self.free_bytes = max_bytes
        self._max_extra_bytes = max_extra_bytes
        self._by_tenant: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes held by all tenants."""
        return self._max_bytes - self.free_bytes

    def has_room(self, count: int, tenant: str | None = None) -> bool:
        """Return whether `count` more bytes may be held, by `tenant` if one is named."""
        if count > self.free_bytes:
            return False
        if tenant is None:
            return True
        own = self._by_tenant.get(tenant, 0) + count
        return own <= self._max_extra_bytes or own <= self.free_bytes - count

    def reserve(self, count: int, tenant: str | None = None) -> bool:
        """Reserve `count` more bytes if they may be held; returns whether they may."""
        left = self.free_bytes - count
        if left < 0:
            return False
        if tenant is not None:
            own = self._by_tenant.get(tenant, 0) + count
            if own > self._max_extra_bytes and own > left:
                return False
            self._by_tenant[tenant] = own
        self.free_bytes = left
        return True

    def release(self, count: int, tenant: str | None = None) -> None:
        """Release bytes that were reserved for the same tenant."""
        self.free_bytes += count
        if tenant is not None:
            left = self._by_tenant[tenant] - count
            if left:
                self._by_tenant[tenant] = left
            else:
                del self._by_tenant[tenant]


class IncomingRequest:
    """A downstream request. `rejection`: the rejection to answer instead of serving it, None while there is none."""

    __slots__ = (
        "_held_bytes",
        "_holder",
        "_parts",
        "body_bytes",
        "caller",
        "declared_bytes",
        "endpoint",
        "framing_bytes",
        "framing_run_bytes",
        "has_head",
        "head_bytes",
        "headers",
        "is_incomplete",
        "keep_alive",
        "may_add_usage",
        "method",
        "model_override",
        "pod_subset",
        "rejection",
        "target",
        "trace",
        "version",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.has_head = False
        self.head_bytes = 0
        """Bytes fed to the parser for the head, incomplete headers included."""
        self.keep_alive = False
        self.rejection: RequestRejected | None = None
        self.is_incomplete = False
        """It was rejected before all of it was read."""
        self.declared_bytes: int | None = None
        """Length of the body by its Content-Length, 0 without one; None if the body is chunked."""
        self.body_bytes = 0
        """Bytes read so far, also of a body that is dropped."""
        self.framing_bytes = 0
        """Bytes read behind the head that are not body: trailers, chunk sizes and extensions."""
        self.framing_run_bytes = 0
        """Of these, the bytes since the last body byte."""
        self.endpoint: ApiEndpoint | None = None
        self.caller: Caller = ANONYMOUS_CALLER
        """Set with `endpoint` once the head was routed."""
        self.pod_subset: frozenset[str] | None = None
        """URLs of the pods that may serve it, None for all: a subset chosen by Envoy."""
        self.model_override: str | None = None
        """The model a trusted proxy has chosen; None: the one that the body names."""
        self.trace: RequestTrace | None = None
        """Its trace, set with `endpoint`; None without `tracing`: pods are then sent the client's headers."""
        self.may_add_usage = True
        """Whether usage may be requested upstream on behalf of the client, because its event can be withheld again."""
        self._parts: list[bytes | bytearray] = []
        self._held_bytes = 0
        self._holder: str | None = None
        """Bytes reserved in the budget, and the tenant they count for."""

    def __repr__(self) -> str:
        return f"<IncomingRequest {self.method} {self.target!r}, {self.body_bytes} bytes>"

    def set_headers(self, fields: Sequence[tuple[bytes, bytes]], limits: Limits, kept: AbstractSet[bytes]) -> None:
        """Keep the headers named in `kept`. `fields`: all headers as written. Raises `RequestRejected` if they are too
        long.
        """
        if sum(map(len, chain.from_iterable(fields))) + HEADER_OVERHEAD_BYTES * len(fields) > limits.max_header_bytes:
            raise head_too_large(limits)
        headers = self.headers
        for field, value in fields:
            name = field.lower()
            if name in kept:
                # A repeated header becomes one with both values: none of ours is valid in that form.
                headers[name] = headers[name] + b", " + value if name in headers else value
        if b"transfer-encoding" not in headers:
            self.declared_bytes = int(headers.get(b"content-length", b"0"))

    def check_head(self, budget: BodyBudget, limits: Limits) -> None:
        """Raise `RequestRejected` if the body is too large, or its framing is ambiguous though llhttp accepts it."""
        headers, version = self.headers, self.version
        coding = headers.get(b"transfer-encoding")
        host = headers.get(b"host", b"")
        if version not in {"1.1", "1.0"}:
            raise RequestRejected(Reason.BAD_REQUEST, "Unsupported HTTP version; use HTTP/1.1.")
        if not host and version == "1.1":
            raise RequestRejected(Reason.BAD_REQUEST, "An HTTP/1.1 request requires a Host header.")
        if b"," in host:
            raise RequestRejected(Reason.BAD_REQUEST, "Duplicate Host header; send exactly one.")
        if coding is not None and (version != "1.1" or coding.lower() != b"chunked"):
            raise RequestRejected(
                Reason.BAD_REQUEST, "Unsupported Transfer-Encoding; only `chunked` with HTTP/1.1 is supported."
            )
        if headers.get(b"expect", b"100-continue").lower() != b"100-continue" and version == "1.1":
            raise RequestRejected(
                Reason.EXPECTATION_FAILED, "Unsupported Expect header; only `100-continue` is supported."
            )
        declared = self.declared_bytes or 0
        if declared > limits.max_body_bytes:
            raise body_too_large(limits)
        if declared > budget.free_bytes:
            raise body_memory_exhausted()

    def add_body(self, piece: bytes | bytearray, budget: BodyBudget, limits: Limits) -> None:
        """Append a piece of body. Raises `RequestRejected` if the body is too large or the budget has no room."""
        self.body_bytes += len(piece)
        if self.body_bytes > limits.max_body_bytes:
            raise body_too_large(limits)
        tenant = self.caller.tenant.name
        if not budget.reserve(len(piece), tenant):
            raise no_body_memory(budget, len(piece))
        self._held_bytes += len(piece)
        self._holder = tenant
        parts = self._parts
        if parts and len(piece) < SMALL_PIECE_BYTES:
            last = parts[-1]
            if isinstance(last, bytearray) and len(last) < MAX_JOINED_BYTES:
                last += piece
                return
            piece = bytearray(piece)
        parts.append(piece)

    def body(self) -> bytes:
        """Return the whole body read so far."""
        parts = self._parts
        if not parts:
            return b""
        whole = parts[0]
        if len(parts) > 1 or not isinstance(whole, bytes):
            whole = b"".join(parts)
            self._parts = [whole]
        return whole

    def drop_body(self, budget: BodyBudget) -> None:
        """Drop the body and release its bytes in the budget. Idempotent."""
        if self._held_bytes:
            budget.release(self._held_bytes, self._holder)
            self._held_bytes = 0
        self._parts.clear()

    def check_tenant_share(self, budget: BodyBudget) -> None:
        """Raise `RequestRejected` if the declared body is larger than what its tenant may hold now."""
        declared = self.declared_bytes or 0
        if declared and not budget.has_room(declared, self.caller.tenant.name):
            raise no_body_memory(budget, declared)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return self.version == "1.1" and b"expect" in self.headers


def url_too_long(limits: Limits) -> RequestRejected:
    """Return the rejection of a URL above `max_url_bytes`."""
    return RequestRejected(Reason.URL_TOO_LONG, f"The URL is longer than {limits.max_url_bytes} bytes.")


def head_too_large(limits: Limits) -> RequestRejected:
    """Return the rejection of a head above `max_header_bytes`."""
    return RequestRejected(Reason.HEADERS_TOO_LARGE, f"The headers are longer than {limits.max_header_bytes} bytes.")


def body_too_large(limits: Limits) -> RequestRejected:
    """Return the rejection of a body above `max_body_bytes`."""
    return RequestRejected(Reason.BODY_TOO_LARGE, f"The body is longer than {limits.max_body_bytes} bytes.")


def no_body_memory(budget: BodyBudget, count: int) -> RequestRejected:
    """Return the rejection of `count` bytes: by the total budget, or by the share of their tenant."""
    return tenant_body_memory_exhausted() if budget.has_room(count) else body_memory_exhausted()


def tenant_body_memory_exhausted() -> RequestRejected:
    """Return the rejection of a body above the share of its tenant."""
    return RequestRejected(
        Reason.BODY_MEMORY_EXHAUSTED,
        "The tenant's share of the request body memory is used up; retry later, with fewer requests in flight.",
        retry_after_s=1.0,
    )


def body_memory_exhausted() -> RequestRejected:
    """Return the rejection of a body for which the budget has no room."""
    return RequestRejected(
        Reason.BODY_MEMORY_EXHAUSTED,
        "Request body memory limit of the gateway reached; retry later.",
        retry_after_s=1.0,
    )
