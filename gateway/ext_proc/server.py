"""The ext_proc server: built from a gateway's components, opens its ports, drains them, and shows its metrics."""

from __future__ import annotations

import asyncio
import hmac
import random
import ssl
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.config.extproc import ExtProcConfig
from gateway.config.fields import Secret
from gateway.config.settings import Settings
from gateway.ext_proc.carrier import ExtProcTransportConfig
from gateway.ext_proc.exchange import Exchange, ExchangeConfig, ExtProcContext
from gateway.ext_proc.health import HealthService
from gateway.ext_proc.http2.connection import Authorize, HandlerFactory
from gateway.ext_proc.http2.frames import Fields, Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.listener import CLOSE_TIMEOUT_S, GrpcListener
from gateway.ext_proc.returned import ReturnedRequests, ReturnHandler, ReturnRule, ReturnTickets
from gateway.http.request_headers import is_in_networks
from gateway.pipeline.attempt import AttemptStatus
from gateway.relay.http_transport import PodKeys
from gateway.runtime.addresses import Address
from gateway.runtime.event_log import LogFunction
from gateway.runtime.ports import addresses_of, listen_error
from gateway.runtime.tls import reload_certificates, server_context
from gateway.server.http_server import HttpServer
from routing.decision.router import Router
from routing.rejection import Reason, RequestRejected

LOG_INTERVAL_S = 60.0
"""Minimum between two log lines about rejected callers of one kind."""

TOKEN, CERTIFICATE = "token", "certificate"

CERTIFICATE_ERRORS = frozenset(("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"))
"""OpenSSL's reasons of a handshake that failed for lack of a valid client certificate."""


class CallerAuthenticator:
    """Authenticates callers of the ext_proc port. One per gateway process."""

    def __init__(self, clock: Callable[[], float], log_event: LogFunction) -> None:
        self._clock = clock
        self._log_event = log_event
        self._logged_s: dict[str, float] = {}
        self.rejected = {TOKEN: 0, CERTIFICATE: 0}

    def __repr__(self) -> str:
        return f"<CallerAuthenticator, rejected: {self.rejected}>"

    def token_guard(self, token: Secret, open_paths: Collection[bytes]) -> Authorize:
        """Return a guard that serves requests with this token, and those for `open_paths` without."""
        wanted = token.value.encode()

        def is_known(fields: Fields) -> bool:
            scheme, _, shown = fields.get(b"authorization", b"").partition(b" ")
            is_right = hmac.compare_digest(shown.strip(), wanted) and scheme.lower() == b"bearer"
            if is_right or fields.get(b":path") in open_paths:
                return True
            self._reject(TOKEN)
            return False

        return is_known

    def watch_handshakes(self, tls: ssl.SSLContext) -> None:
        """Count handshakes that fail for lack of a valid certificate: they never become connections."""
        reject = self._reject

        class WatchedTls(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except ssl.SSLError as error:
                    if error.reason in CERTIFICATE_ERRORS:
                        reject(CERTIFICATE)
                    raise

        tls.sslobject_class = WatchedTls

    def _reject(self, by: str) -> None:
        self.rejected[by] += 1
        now_s, logged_s = self._clock(), self._logged_s.get(by)
        if logged_s is None or now_s - logged_s >= LOG_INTERVAL_S:
            self._logged_s[by] = now_s
            self._log_event("warning", "extproc_caller_rejected", reason=by)


class ExtProcCollector(Collector):
    """Shows connections, streams and rejected callers."""

    def __init__(self, port: GrpcListener, office: ExtProcContext, callers: CallerAuthenticator) -> None:
        self._port = port
        self._office = office
        self._callers = callers

    def collect(self) -> Iterator[Metric]:
        shown = {
            "hearth_extproc_connections": ("Connections of Envoy.", len(self._port.connections)),
            "hearth_extproc_streams": ("Streams open on them.", self._port.open_streams),
            "hearth_extproc_requests_in_flight": (
                "Requests in flight behind Envoy.",
                self._office.stream_counter.count,
            ),
            "hearth_extproc_access_log_streams": ("Open access-log streams of Envoy.", self._office.log.streams),
        }
        for name, (words, value) in shown.items():
            yield GaugeMetricFamily(name, words, value)
        rejected = CounterMetricFamily(
            "hearth_extproc_unauthenticated",
            "Callers rejected because of their certificate (handshakes) or token (requests).",
            labels=("reason",),
        )
        for by, count in self._callers.rejected.items():
            rejected.add_metric((by,), count)
        yield rejected
        if self._office.returns is not None:
            yield CounterMetricFamily(
                "hearth_extproc_returned_requests",
                "Requests that Envoy returns to this gateway.",
                self._office.returns.tickets.issued_count,
            )


EXT_PROC = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"

BACKLOG = 1024

MAX_CHECK_WAIT_S = 10.0
"""Maximum wait for Envoy's health checks to see that we drain: they come every second or two."""


class _ReturnListener:
    """The port at which Envoy returns requests to this process."""

    def __init__(
        self,
        front: HttpServer,
        words: ExtProcConfig,
        settings: Settings,
        clock: Callable[[], float],
        provider_models: Callable[[], frozenset[str]],
    ) -> None:
        assert words.return_listen is not None  # noqa: S101 - the caller has looked
        self._address = words.return_listen
        tickets = ReturnTickets(clock, settings.limits.max_connections)
        rule = ReturnRule(front.dispatcher.cascades, words.returns, provider_models)
        self.returned = ReturnedRequests(rule, tickets, lambda: self._address)
        self.listener = front.listener_for(ReturnHandler(front.dispatcher, tickets))

    async def open(self, stack: AsyncExitStack, number: int) -> list[str]:
        """Listen until the stack is left, `number` ports higher than configured. Returns where."""
        where = self._address
        if where.port:
            where = replace(where, port=where.port + number)
        try:
            server = await asyncio.get_running_loop().create_server(
                self.listener.make_protocol, where.host, where.port, backlog=BACKLOG
            )
        except OSError as error:
            raise listen_error("extproc.return_listen", where, error) from None
        self._address = replace(where, port=server.sockets[0].getsockname()[1])
        stack.callback(self.listener.close)
        stack.callback(server.close)
        return addresses_of(server.sockets)


class ExtProcServer:
    """One per gateway process. Its requests go to the same dispatcher as those of the traffic port."""

    def __init__(
        self,
        settings: Settings,
        words: ExtProcConfig,
        front: HttpServer,
        router: Router,
        pods: PodKeys,
        *,
        is_ready: Callable[[], bool],
        take_end: Callable[[str, AttemptStatus], object],
        number: int,
        log_event: LogFunction,
        provider_models: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`number` of the worker, 0 if it is the only one: each has its port, or they share; `log_event`
        logs.
        """
        self._words = words
        self._number = max(0, number - 1)
        self._is_one_of_several = number > 0
        loop = asyncio.get_running_loop()
        trusted: tuple[IPv4Network | IPv6Network, ...] = settings.trusted_proxies
        self.office = ExtProcContext(
            front.dispatcher,
            router.fleet,
            ExtProcTransportConfig(
                pods,
                router.fleet.takes_priority,
                settings.limits.max_recorded_response_bytes,
                words.max_endpoints,
            ),
            budget=front.body_budget,
            rules=ExchangeConfig(
                settings.limits,
                settings.timeouts,
                queue_s=words.max_queue_s,
                sample_share=words.sample_share,
                is_trusted_proxy=lambda source: (
                    words.trust_headers or bool(source and trusted and is_in_networks(source, trusted))
                ),
            ),
            pass_over=lambda url: take_end(url, AttemptStatus.UNREACHABLE),
            clock=loop.time,
            draw=random.Random().random,  # noqa: S311 - which answers are looked at is no secret
        )
        health = HealthService(is_ready)
        self._checkers = health.checkers
        services: dict[bytes, HandlerFactory] = {
            EXT_PROC: self._exchange,
            **self.office.log.services(),
            **health.services(),
        }
        bounds = Http2Limits(
            max_streams=settings.limits.max_connections,
            max_message_bytes=settings.limits.max_body_bytes + (1 << 20),
            preface_s=settings.timeouts.request_header_s,
            frame_s=settings.timeouts.request_body_s,
        )
        common = front.body_budget, self.office.stream_counter, bounds
        self.callers = CallerAuthenticator(loop.time, log_event)
        guard = None if words.token is None else self.callers.token_guard(words.token, health.services())
        self.port = GrpcListener(services, *common, guard=guard, on_parted=self._checkers.forget)
        self.health_port = GrpcListener(health.services(), *common, on_parted=self._checkers.forget)
        self.tls = server_context(words.tls, speaks="h2") if words.tls else None
        if self.tls is not None and words.tls is not None and words.tls.client_ca is not None:
            self.callers.watch_handshakes(self.tls)
        self._returns = (
            None if words.return_listen is None else _ReturnListener(front, words, settings, loop.time, provider_models)
        )
        if self._returns is not None:
            self.office.returns = self._returns.returned
        self.exposition = ExtProcCollector(self.port, self.office, self.callers)

    def _exchange(self, stream: GrpcStream) -> GrpcStreamHandler:
        return Exchange(self.office, stream)

    async def open(self, stack: AsyncExitStack) -> dict[str, list[str]]:
        """Listen until the stack is left. Returns where, by name. Raises `CannotListen`."""
        listening = {"extproc": await self._listen(stack, "extproc", self._words.listen, self.port, self.tls)}
        if self._words.health_listen is not None:
            where = self._words.health_listen
            listening["extproc_health"] = await self._listen(stack, "extproc.health", where, self.health_port, None)
        if self._returns is not None:
            listening["extproc_return"] = await self._returns.open(stack, self._number)
        return listening

    async def _listen(
        self, stack: AsyncExitStack, name: str, where: Address, port: GrpcListener, tls: ssl.SSLContext | None
    ) -> list[str]:
        shares = self._words.reuse_port
        number = where.port + self._number if where.port and not shares else where.port
        try:
            server = await port.listen(
                tls=tls,
                host=where.host,
                port=number,
                backlog=BACKLOG,
                reuse_port=shares and self._is_one_of_several,
            )
        except OSError as error:
            raise listen_error(name, where, error) from None
        stack.callback(port.close)
        return addresses_of(server.sockets)

    def renewal_tasks(self, log_event: LogFunction) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Return the task that renews its certificate, if it has one."""
        tls, words = self.tls, self._words
        return [] if tls is None else [lambda: reload_certificates(tls, lambda: words.tls, log_event)]

    async def drain(self, grace_s: float) -> None:
        """Serve until Envoy's health checks have seen NOT_SERVING, send GOAWAY, finish open exchanges, reject what is
        left; serve health to the last.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + grace_s
        await self._checkers.wait_until_known(min(MAX_CHECK_WAIT_S, grace_s / 2))
        await self.port.begin_drain()
        left_s = max(0.0, ends_s - loop.time())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cut_late(left_s))
            group.create_task(self.port.drain(left_s))
        if self._returns is not None:
            await self._returns.listener.drain(max(0.0, ends_s - loop.time()))
        await self.health_port.begin_drain()
        await self.health_port.drain(CLOSE_TIMEOUT_S)

    async def _cut_late(self, grace_s: float) -> None:
        """Reject the requests that still wait for an engine near the end of the grace period."""
        await self.port.wait_until_empty(grace_s * 0.9)
        for exchange in self.office.open_exchanges():
            exchange.reject_pending(
                RequestRejected(Reason.GATEWAY_DRAINING, "The gateway is shutting down.", retry_after_s=1.0)
            )
