"""Requests that Envoy carries back to this process: their tickets, the rule that picks them, the port that serves them.

Envoy takes one destination per request, and shows a response at best chunk by chunk. What needs more of a response
(to hold it back, to ask another model, to continue it on another pod) is served over the gateway's own connections:
the picker names the gateway's return listener as the destination. There the request is the one that the picker has
checked: a ticket, a random header value that only this process knows, stands for its caller, endpoint and trace, so
that neither a key nor an identity header is trusted twice. It serves one request.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.cascades.cascades import Cascades
from gateway.config.extproc import ReturnedFeature
from gateway.http.client_request import IncomingRequest
from gateway.http.endpoints import ApiEndpoint
from gateway.http.response_writer import ResponseWriter
from gateway.pipeline.record import HTTP, Frontend
from gateway.runtime.addresses import Address
from gateway.runtime.trace_context import RequestTrace
from gateway.server.coalescing import is_coalescible
from gateway.server.dispatcher import HttpDispatcher
from routing.reading import ParsedRequest
from routing.rejection import Reason, RequestRejected
from tenancy.tenants import Caller

TICKET = "x-hearth-return"
"""Request header: the ticket of a request that Envoy carries back."""

TICKET_KEY = TICKET.encode("ascii")

ANY_HOST = frozenset(("0.0.0.0", "::", ""))  # noqa: S104 - compared with, not listened on
MAPPED = "::ffff:"
"""Prefix of an IPv4 address as a socket for both families shows it."""

TICKET_LIFE_S = 60.0
"""How long Envoy may take to connect and send the request. Until all of it has arrived, Envoy's retries use the same
ticket.
"""

USED = (
    "This port serves only requests that the gateway's picker has sent here by way of Envoy, each once and within a "
    "minute; send requests to the port of Envoy. If Envoy itself has sent this one a second time, let its retry_on "
    "name connect-failure, refused-stream and reset-before-request only: the gateway tries other pods by itself."
)


@dataclass(frozen=True, slots=True)
class ReturnTicket:
    """What the picker has found out about a request by its head."""

    caller: Caller
    endpoint: ApiEndpoint
    frontend: Frontend
    model_override: str | None
    pod_subset: frozenset[str] | None
    trace: RequestTrace | None
    expires_s: float


class ReturnTickets:
    """The tickets of one process, oldest first; at most `max_tickets`."""

    def __init__(self, clock: Callable[[], float], max_tickets: int) -> None:
        self._clock = clock
        self._max_tickets = max_tickets
        self._tickets: OrderedDict[bytes, ReturnTicket] = OrderedDict()
        self.issued_count = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, incoming: IncomingRequest, frontend: Frontend) -> str:
        """Return the ticket of a routed request. Drops those that have expired, and the oldest beyond the maximum."""
        now_s, tickets = self._clock(), self._tickets
        while tickets and (len(tickets) >= self._max_tickets or tickets[next(iter(tickets))].expires_s <= now_s):
            tickets.popitem(last=False)
        assert incoming.endpoint is not None  # noqa: S101 - only a routed request is handed over
        text = secrets.token_urlsafe(24)
        tickets[text.encode()] = ReturnTicket(
            incoming.caller,
            incoming.endpoint,
            frontend,
            incoming.model_override,
            incoming.pod_subset,
            incoming.trace,
            now_s + TICKET_LIFE_S,
        )
        self.issued_count += 1
        return text

    def find(self, text: bytes | None) -> ReturnTicket | None:
        """Return a ticket that has not expired; None where there is none."""
        ticket = None if text is None else self._tickets.get(text)
        return ticket if ticket is not None and self._clock() < ticket.expires_s else None

    def take(self, text: bytes | None) -> ReturnTicket | None:
        """Return a ticket for the one request that it serves, and drop it; None where it is not there any more."""
        return None if text is None else self._tickets.pop(text, None)


class ReturnRule:
    """Which requests behind Envoy are served over the gateway's own connections."""

    def __init__(
        self, cascades: Cascades, features: Collection[ReturnedFeature], provider_models: Callable[[], frozenset[str]]
    ) -> None:
        """`provider_models` returns the models that are served outside the fleet: Envoy cannot be sent there."""
        self._cascades = cascades
        self._features = frozenset(features)
        self._provider_models = provider_models

    def applies(self, caller: Caller, reading: ParsedRequest) -> bool:
        """Return whether a request needs more of its response than Envoy shows."""
        request, features = reading.request, self._features
        if ReturnedFeature.CASCADES in features and request.model in self._cascades.judging_names:
            return True
        outside = self._provider_models()
        if outside and (request.model in outside or not outside.isdisjoint(self._cascades.models_of(request.model))):
            return True
        if request.stream:
            is_limited = ReturnedFeature.LIMITS in features and bool(caller.accounts)
            return is_limited or (ReturnedFeature.RESUME in features and caller.tenant.resumes)
        return (
            ReturnedFeature.COALESCING in features and caller.tenant.coalesces and is_coalescible(request, reading.body)
        )


@dataclass(frozen=True, slots=True)
class ReturnedRequests:
    """How requests are returned to one process: by which rule, with which tickets, and where."""

    rule: ReturnRule
    tickets: ReturnTickets
    address: Callable[[], Address]
    """Where the return listener listens; its port is known once it does."""

    def endpoint(self, local_host: str) -> str:
        """Return the destination for Envoy: the listener's own address, or the one by which Envoy reached the picker.

        `local_host`: that address, used where the listener accepts connections on all of them.
        """
        listening = self.address()
        host = local_host if listening.host in ANY_HOST and local_host else listening.host
        return str(Address(host.removeprefix(MAPPED), listening.port))


class ReturnHandler:
    """Routes and serves what arrives at the return listener: requests with a valid ticket, and nothing else."""

    def __init__(self, dispatcher: HttpDispatcher, tickets: ReturnTickets) -> None:
        dispatcher.keep_headers([TICKET])
        self._dispatcher = dispatcher
        self._tickets = tickets
        self.kept_headers = dispatcher.kept_headers

    @property
    def is_draining(self) -> bool:
        """Whether each response closes its connection."""
        return self._dispatcher.is_draining

    def new_id(self) -> str:
        """Return a request id that no other gateway process makes."""
        return self._dispatcher.new_id()

    def route(self, incoming: IncomingRequest, *, is_trusted: bool) -> None:
        """Set endpoint and caller of a request by its ticket. Raises `RequestRejected` without a valid one."""
        ticket = self._tickets.find(incoming.headers.get(TICKET_KEY))
        if ticket is None or incoming.method not in ticket.endpoint.methods:
            raise RequestRejected(Reason.INVALID_KEY, USED)
        incoming.endpoint, incoming.caller = ticket.endpoint, ticket.caller
        incoming.model_override, incoming.pod_subset = ticket.model_override, ticket.pod_subset
        incoming.trace = ticket.trace

    def serve(self, incoming: IncomingRequest, reply: ResponseWriter) -> None:
        """Answer a request as the gateway's own port does; its record names Envoy's modes."""
        ticket = self._tickets.take(incoming.headers.get(TICKET_KEY))
        if ticket is None and incoming.rejection is None:  # Another request with the same ticket was complete before.
            incoming.rejection = RequestRejected(Reason.INVALID_KEY, USED)
        self._dispatcher.serve(incoming, reply, frontend=HTTP if ticket is None else ticket.frontend)
