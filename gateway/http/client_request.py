"""One request of a client as far as it has been read, and what its head must be for its framing to be trusted.

Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

from gateway.config.port_limits import Limits
from gateway.http.endpoints import Endpoint
from gateway.http.request_headers import DEADLINES, MODEL_HEADERS, RETRIES, SPEAKING
from routing.rejection import Reason, Refused
from tenancy.tenants import NOBODY, Caller

KEPT_HEADERS = frozenset(
    (
        *(b"host", b"transfer-encoding", b"content-length", b"expect"),
        *(b"content-type", b"content-encoding"),
        *(b"authorization", b"x-api-key"),
        *(b"x-request-id", b"traceparent", b"tracestate"),
        *(b"x-session-id", b"x-claude-code-session-id", b"session-id"),
        b"x-hearth-supersedes",
        RETRIES,
        *DEADLINES,
        *MODEL_HEADERS,
        *SPEAKING,
    )
)
"""The headers that mean something to us. All others are counted and forgotten, but for those that a policy names."""

HEADER_OVERHEAD_BYTES = 4
"""Colon, space and line end."""


SMALL_PIECE_BYTES = 4 << 10
"""Smaller pieces of a body are joined as they come: an object for each would take many times its bytes."""

JOINED_BYTES = 256 << 10
"""Joined pieces begin anew beyond this, so that growing never copies much."""


class Budget:
    """Bytes of request bodies that may be held at one time, all connections together.

    A tenant may hold as much as is still free, so one alone half of all, and others always find room. One body of the
    largest size is never refused for that.
    """

    def __init__(self, most: int, *, largest: int = 0) -> None:
        """`largest`: bytes that each tenant may hold in any case, as far as there is room at all."""
        self._most = most
        self._largest = largest
        self._by_tenant: dict[str, int] = {}
        self.held = 0

    def has_room(self, count: int, tenant: str | None = None) -> bool:
        """Whether so many more bytes may be held, by a tenant where one is named."""
        held = self.held + count
        if held > self._most:
            return False
        if tenant is None:
            return True
        own = self._by_tenant.get(tenant, 0) + count
        return own <= self._largest or own <= self._most - held

    def take(self, count: int, tenant: str | None = None) -> bool:
        """Count so many more bytes if they may be held. Returns whether they may."""
        if not self.has_room(count, tenant):
            return False
        self.held += count
        if tenant is not None:
            self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + count
        return True

    def give(self, count: int, tenant: str | None = None) -> None:
        """Give back bytes that were taken for the same tenant."""
        self.held -= count
        if tenant is not None:
            left = self._by_tenant[tenant] - count
            if left:
                self._by_tenant[tenant] = left
            else:
                del self._by_tenant[tenant]


class Asked:
    """A request being read. `refusal` is what will be answered instead of serving it."""

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
        "is_cut_off",
        "keep_alive",
        "may_add_usage",
        "method",
        "model",
        "pods",
        "refusal",
        "target",
        "version",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.has_head = False
        self.head_bytes = 0
        """As fed to the parser, which tells of a header only when it has ended."""
        self.keep_alive = False
        self.refusal: Refused | None = None
        self.is_cut_off = False
        """It was refused before all of it was read."""
        self.declared_bytes: int | None = None
        """How long the body is said to be, None where it comes in chunks."""
        self.body_bytes = 0
        """Read so far, also of a body that is not kept."""
        self.framing_bytes = 0
        """Read behind the head and not body: trailers, chunk sizes and extensions."""
        self.framing_run_bytes = 0
        """Of these, those that no body has followed yet."""
        self.endpoint: Endpoint | None = None
        self.caller: Caller = NOBODY
        """What is asked for and by whom, once the head was looked at."""
        self.pods: frozenset[str] | None = None
        """Who may serve it, None for all: a hint of Envoy's."""
        self.model: str | None = None
        """Which model is to answer, by the word of whoever may speak for others; None: the one that is asked for."""
        self.may_add_usage = True
        """Whether we can withhold from its client what it did not ask for."""
        self._parts: list[bytes | bytearray] = []
        self._held_bytes = 0
        self._holder: str | None = None
        """What is counted for the body, and for which tenant."""

    def __repr__(self) -> str:
        return f"<Asked {self.method} {self.target!r}, {self.body_bytes} bytes>"

    def add_target(self, piece: bytes, limits: Limits) -> None:
        """Raises `Refused` where the URL grows too long."""
        self.target += piece
        if len(self.target) > limits.max_url_bytes:
            raise Refused(Reason.URL_TOO_LONG, f"The URL is longer than {limits.max_url_bytes} bytes.")

    def take_headers(self, fields: Sequence[tuple[bytes, bytes]], limits: Limits, kept: AbstractSet[bytes]) -> None:
        """All of them, as they were written. Raises `Refused` where they are too long together."""
        if sum(map(len, chain.from_iterable(fields))) + HEADER_OVERHEAD_BYTES * len(fields) > limits.max_header_bytes:
            raise head_too_large(limits)
        headers = self.headers
        for field, value in fields:
            name = field.lower()
            if name in kept:
                # Given twice, it is one header with both values: none of ours has a meaning then, and none is believed.
                headers[name] = headers[name] + b", " + value if name in headers else value
        if b"transfer-encoding" not in headers:
            self.declared_bytes = int(headers.get(b"content-length", b"0"))

    def add_body(self, piece: bytes | bytearray, budget: Budget, limits: Limits) -> None:
        """Keep a piece of body. Raises `Refused` where it is too much for us or for anybody."""
        self.body_bytes += len(piece)
        if self.body_bytes > limits.max_body_bytes:
            raise body_too_large(limits)
        tenant = self.caller.tenant.name
        if not budget.take(len(piece), tenant):
            raise no_room(budget, len(piece))
        self._held_bytes += len(piece)
        self._holder = tenant
        parts = self._parts
        if parts and len(piece) < SMALL_PIECE_BYTES:
            last = parts[-1]
            if isinstance(last, bytearray) and len(last) < JOINED_BYTES:
                last += piece
                return
            piece = bytearray(piece)
        parts.append(piece)

    def body(self) -> bytes:
        """The whole body."""
        parts = self._parts
        if not parts:
            return b""
        whole = parts[0]
        if len(parts) > 1 or not isinstance(whole, bytes):
            whole = b"".join(parts)
            self._parts = [whole]
        return whole

    def drop_body(self, budget: Budget) -> None:
        """Give back what the body took. Safe to call again."""
        if self._held_bytes:
            budget.give(self._held_bytes, self._holder)
            self._held_bytes = 0
        self._parts.clear()

    def check_share(self, budget: Budget) -> None:
        """Raise `Refused` where the body that was declared is more than its tenant may hold now."""
        declared = self.declared_bytes or 0
        if declared and not budget.has_room(declared, self.caller.tenant.name):
            raise no_room(budget, declared)

    @property
    def expects_continue(self) -> bool:
        return self.version == "1.1" and b"expect" in self.headers


def judge_head(asked: Asked, budget: Budget, limits: Limits) -> None:
    """Raise `Refused` where the message is too large, or cannot be framed for certain though llhttp takes it."""
    headers = asked.headers
    host = headers.get(b"host", b"")
    if asked.version not in {"1.1", "1.0"}:
        raise Refused(Reason.BAD_REQUEST, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if not host and asked.version == "1.1":
        raise Refused(Reason.BAD_REQUEST, "An HTTP/1.1 request needs one Host header.")
    if b"," in host:
        raise Refused(Reason.BAD_REQUEST, "There is more than one Host header.")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and (asked.version != "1.1" or coding.lower() != b"chunked"):
        raise Refused(Reason.BAD_REQUEST, "The only Transfer-Encoding spoken here is `chunked`, in HTTP/1.1.")
    if asked.expects_continue and headers[b"expect"].lower() != b"100-continue":
        raise Refused(Reason.EXPECTATION_FAILED, "The only expectation met here is `100-continue`.")
    declared = asked.declared_bytes or 0
    if declared > limits.max_body_bytes:
        raise body_too_large(limits)
    if not budget.has_room(declared):
        raise too_many_bodies()


def head_too_large(limits: Limits) -> Refused:
    return Refused(Reason.HEADERS_TOO_LARGE, f"The headers are longer than {limits.max_header_bytes} bytes.")


def body_too_large(limits: Limits) -> Refused:
    return Refused(Reason.BODY_TOO_LARGE, f"The body is longer than {limits.max_body_bytes} bytes.")


def no_room(budget: Budget, count: int) -> Refused:
    """Return why so many bytes may not be held: for all bodies together, or for those of one tenant."""
    return too_many_bodies_of_tenant() if budget.has_room(count) else too_many_bodies()


def too_many_bodies_of_tenant() -> Refused:
    return Refused(
        Reason.GATEWAY_BUSY,
        "The request bodies of this tenant hold its share of the gateway's memory for bodies.",
        retry_after_s=1.0,
    )


def too_many_bodies() -> Refused:
    return Refused(Reason.GATEWAY_BUSY, "The gateway holds as many request bodies as it can.", retry_after_s=1.0)
