"""Where a request goes: to the fleet, to the pod that stored a response, to a page of our own, or nowhere.

Looks at its head before a body is kept for anybody, and gives every refusal to its client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gateway.cascades.cascades import Ladders
from gateway.config.port_limits import Timeouts
from gateway.http.client_request import Asked
from gateway.http.cors import Cors
from gateway.http.endpoints import TABLE, Endpoint, Local, find_endpoint
from gateway.http.in_flight import UnderWay
from gateway.http.inference import Leading
from gateway.http.local_endpoints import Pages
from gateway.http.request_headers import decided_model, key_shown, trace_of
from gateway.http.response_writer import Reply
from gateway.http.stored_responses import Stored
from gateway.pipeline.pipeline import Passage
from gateway.relay.transport_factory import Carriers
from routing.decision.router import Router
from routing.rejection import Reason, Refused
from tenancy.tenants import Caller

Identify = Callable[[str | None, Mapping[bytes, bytes] | None], Caller]
"""Whoever shows a key, or none; and what headers say of it, if somebody sends them who may. Raises `Refused`."""

JSON = b"application/json"
PLAIN = "text/plain"

ANTHROPICS = re.compile(rb"/v1/messages(?![^/?])")
"""Targets of Anthropic's API, whether they are served or not."""


class Desk:
    """One per front. `on_refused` is told of what was refused before it became a request of the fleet's."""

    def __init__(
        self,
        passage: Passage,
        router: Router,
        identify: Identify,
        carriers: Carriers,
        ladders: Ladders,
        timeouts: Timeouts,
        *,
        readiness: Callable[[], bool],
        on_refused: Callable[[Refused], None],
        cors: Cors | None = None,
    ) -> None:
        self._cors = cors
        self._identify = identify
        self._on_refused = on_refused
        self.carriers = carriers
        self.under_way = UnderWay()
        self._pages = Pages(router.fleet, ladders, readiness=readiness, wall_clock=passage.wall_clock)
        self._stored = Stored(router, passage, first_byte_s=timeouts.first_byte_s)
        self.leading = Leading(passage, carriers, self._stored, ladders, self.under_way)

    def route(self, asked: Asked, *, is_trusted: bool) -> None:
        """What can be said by the head alone, before a body is kept for anybody. Raises `Refused`.

        `is_trusted`: whoever sends it may speak for others.
        """
        asked.endpoint = endpoint = find_endpoint(asked.target)
        if asked.method not in endpoint.methods:
            if self._is_preflight(asked):
                asked.endpoint = Endpoint(endpoint.path, ("OPTIONS",), local=Local.PREFLIGHT, name=endpoint.allow)
                return
            raise Refused(Reason.WRONG_METHOD, f"{endpoint.path} takes {endpoint.allow}.")
        if endpoint.needs_key:
            asked.caller = self._identify(key_shown(asked.headers), asked.headers if is_trusted else None)
            asked.model = decided_model(asked.headers) if is_trusted else None
        if endpoint.api is not None:
            _check_media_type(asked)

    def serve(self, asked: Asked, reply: Reply) -> None:
        """Answer, now or later."""
        if asked.endpoint is None:
            asked.endpoint = TABLE.get(asked.target)  # Refused before it was routed, it has a dialect all the same.
        if asked.endpoint is not None:
            reply.api, reply.is_anthropic = asked.endpoint.counted_as, asked.endpoint.is_anthropic
        elif ANTHROPICS.match(asked.target):
            reply.is_anthropic = True  # A part of that API that is not served here.
        if self._cors is not None:
            reply.fields += self._cors.fields(asked.headers)
        try:
            self._serve(asked, reply)
        except Refused as refusal:
            self._note(asked, reply, refusal)
            is_method = refusal.reason is Reason.WRONG_METHOD and asked.endpoint is not None
            reply.refuse(refusal, fields=[("allow", asked.endpoint.allow)] if is_method and asked.endpoint else ())
        except Exception as fault:  # noqa: BLE001 - whatever is wrong with us, the client gets an answer
            self.under_way.report(fault, reply)

    def _serve(self, asked: Asked, reply: Reply) -> None:
        endpoint = asked.endpoint
        if asked.refusal is not None:
            raise asked.refusal
        if endpoint is None:
            raise Refused(Reason.GATEWAY_ERROR, "The request was not routed.")
        if endpoint.api is not None:
            self.leading.lead(endpoint, endpoint.api, asked, reply)
        elif endpoint.local is Local.STORED_RESPONSE:
            self._fetch(endpoint, asked, reply)
        elif endpoint.local is Local.PREFLIGHT and self._cors is not None:
            reply.answer(200, b"", content_type=PLAIN, fields=self._cors.preflight(asked.headers, endpoint.name))
        else:
            self._pages.answer(endpoint, asked.caller.tenant, reply)

    def _is_preflight(self, asked: Asked) -> bool:
        """Whether a browser asks on behalf of a page that may go on."""
        return asked.method == "OPTIONS" and self._cors is not None and self._cors.allows(asked.headers)

    def _fetch(self, endpoint: Endpoint, asked: Asked, reply: Reply) -> None:
        errand = self._stored.errand(reply.request_id, endpoint.name, asked.caller.tenant)
        carrier = self.carriers.make(endpoint, asked, reply, asked.body(), usage_added=False)
        caller, trace = asked.caller, trace_of(asked.headers)
        self.under_way.begin(reply, lambda: self._stored.run(errand, carrier, caller, trace))

    def _note(self, asked: Asked, reply: Reply, refusal: Refused) -> None:
        """What was asked of the fleet leaves an outcome; what was not is counted."""
        if reply.api is None:
            self._on_refused(refusal)
        else:
            self.leading.turn_away(reply.api, asked, reply, refusal)


def _check_media_type(asked: Asked) -> None:
    kind = asked.headers.get(b"content-type", b"")
    if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
        raise Refused(Reason.WRONG_MEDIA_TYPE, "Send the body as `Content-Type: application/json`.")
    if asked.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        # Engines would take the compressed bytes for the body.
        raise Refused(Reason.WRONG_MEDIA_TYPE, "Send the body without a Content-Encoding.")
