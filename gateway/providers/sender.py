"""Sends one attempt to a provider endpoint: with a permit, a head and a body of its own, and an answer in our terms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.config.providers import ProviderEndpoint
from gateway.http.client_request import IncomingRequest
from gateway.http.request_headers import is_local_only
from gateway.http.response_writer import ResponseWriter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus
from gateway.providers.bodies import OutgoingBody
from gateway.providers.chat_to_messages import MessageAsChat, MessageStreamAsChat
from gateway.providers.exchange import ProviderExchange
from gateway.providers.gate import Denial, Permit, ProviderGate
from gateway.providers.link import endpoint_fields
from gateway.providers.link_watch import LinkWatch
from gateway.providers.messages_to_chat import ChatAsMessage, ChatStreamAsMessage
from gateway.providers.translation import AnswerTranslator
from gateway.relay.relay import PlacedAttempt, Relay
from gateway.relay.upstream_connection import UpstreamConnection
from gateway.relay.upstream_pool import PoolIsFull, UpstreamPool
from gateway.runtime.guard import call_guarded
from routing.request import Api, Request

PROVIDERS_HEADER = "x-hearth-providers"
"""Response header: providers outside the fleet that the request was sent to, as `provider/region`."""


class PermitEnded(Exception):  # noqa: N818 - like a rejection it is an outcome, not an error
    """Providers were stopped, the endpoint was changed, or the tenant's grant removed, before anything was sent."""


class ProviderSender:
    """One per gateway process. Implements `ProviderRoute` of the transport."""

    def __init__(self, gate: ProviderGate, pool: UpstreamPool, watch: LinkWatch) -> None:
        self._gate = gate
        self._watch = watch
        self._pool = pool
        gate.monitor.on_stop = lambda url: pool.fail_silent(url, 0.0)

    def serves(self, url: str) -> bool:
        """Return whether a URL is that of an endpoint outside the fleet."""
        return self._gate.serves(url)

    async def run_attempt(
        self,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        placement: PlacedAttempt,
        body: bytes,
        make_relay: Callable[[], Relay],
        first_byte_by_s: float,
        *,
        is_continuation: bool,
    ) -> AttemptResult:
        """Send one attempt and relay its response; see `AttemptTransport.run_attempt`."""
        permit = await self._gate.permit(
            placement.engine.pod,
            incoming.caller.tenant,
            placement.request,
            body,
            is_local_only=is_local_only(incoming.headers),
            is_continuation=is_continuation,
        )
        if isinstance(permit, Denial):
            return AttemptResult(permit.end, detail=permit.detail)
        result: AttemptResult | None = None
        exchange: ProviderExchange | None = None
        was_sent = False
        try:
            config = permit.config
            try:
                line = self._pool.lease_idle(config.url) or await self._connect(permit)
                add_provider(reply, config)
                relay, was_sent = make_relay(), True
                exchange = await self._exchange(permit, placement.request, line, relay, first_byte_by_s)
                if exchange.was_stale and self._gate.monitor.is_reachable(config.url):
                    line = await self._connect(permit)
                    exchange = await self._exchange(permit, placement.request, line, make_relay(), first_byte_by_s)
            except PermitEnded:
                was_sent = False
                result = AttemptResult(
                    AttemptStatus.PROVIDER_DENIED, detail=f"{config.name} was stopped, changed or forbidden."
                )
            except (PoolIsFull, OSError) as error:
                was_sent = False
                result = _unreachable(config, error)
            else:
                result = exchange.relay.result()
                was_sent = exchange.status < 400
        finally:
            self._gate.close(permit, None if result is None else result.usage or result.counted, was_sent=was_sent)
        return result

    async def _connect(self, permit: Permit) -> UpstreamConnection:
        """Open a connection. Raises `OSError`, `PoolIsFull`, or `PermitEnded` where nothing may be sent any more."""
        config = permit.config
        async with asyncio.timeout(config.connect_timeout_s):
            line = await self._pool.connect(config.url)
        if not self._gate.is_valid(permit):
            line.abort()
            raise PermitEnded
        if not line.is_open:
            raise ConnectionResetError
        line.set_unacknowledged_timeout(config.connect_timeout_s)
        return line

    async def _exchange(
        self, permit: Permit, request: Request, line: UpstreamConnection, relay: Relay, first_byte_by_s: float
    ) -> ProviderExchange:
        config, monitor = permit.config, self._gate.monitor
        exchange = ProviderExchange(
            relay,
            translator_of(request.api, permit.body),
            config.name,
            note_busy=lambda seconds: monitor.note_busy(config.url, seconds),
            note_rejected=lambda status: monitor.note_key_rejected(config.url, status),
        )
        loop = self._pool.loop
        by_s = min(first_byte_by_s, loop.time() + config.first_byte_timeout_s)
        address = self._pool.address(config.url)
        head = head_of(config, address.authority, address.base + permit.body.path, len(permit.body.content))
        self._watch.begin()
        line.send_request(exchange, [head, permit.body.content], by_s)
        limit = loop.call_later(config.response_timeout_s, call_guarded, "provider answer", exchange.end_by_time)
        try:
            await relay.ended
        except BaseException:
            line.abort()  # The client has disconnected.
            raise
        finally:
            limit.cancel()
        return exchange


def head_of(config: ProviderEndpoint, authority: str, path: str, length: int) -> bytes:
    """Return the head of a request: nothing of the client's, of its trace or of the gateway's own ids is in it."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {authority}\r\naccept: application/json, text/event-stream\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n"
    )
    return f"{head}{endpoint_fields(config)}\r\n".encode("latin-1")


def translator_of(api: Api, body: OutgoingBody) -> AnswerTranslator | None:
    """Return the translator of the answer to the client's API; None where it is that of the endpoint."""
    if body.api is api:
        return None
    if api is Api.MESSAGES:
        return ChatStreamAsMessage() if body.is_stream else ChatAsMessage()
    created_s = int(time.time())
    if body.is_stream:
        return MessageStreamAsChat(created_s, includes_usage=body.includes_usage)
    return MessageAsChat(created_s)


def add_provider(reply: ResponseWriter, config: ProviderEndpoint) -> None:
    """Name an endpoint in the response header, behind those that the request was sent to before."""
    known = dict(reply.headers).get(PROVIDERS_HEADER, "")
    labels = dict.fromkeys([*filter(None, known.split(", ")), config.label])
    others = tuple(each for each in reply.headers if each[0] != PROVIDERS_HEADER)
    reply.headers = (*others, (PROVIDERS_HEADER, ", ".join(labels)))


def _unreachable(config: ProviderEndpoint, error: PoolIsFull | OSError) -> AttemptResult:
    if isinstance(error, PoolIsFull):
        detail = f"Connection limit to the provider endpoint {config.name} reached."
        return AttemptResult(AttemptStatus.PROVIDER_LIMIT, detail=detail)
    what = "Timeout while connecting" if isinstance(error, TimeoutError) else "Cannot connect"
    return AttemptResult(AttemptStatus.UNREACHABLE, detail=f"{what} to the provider endpoint {config.name}.")
