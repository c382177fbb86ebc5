"""The HTTP server of a gateway process: listener, dispatcher and upstream connection pool, and how they are drained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network

from gateway.cascades.cascades import Cascades
from gateway.config.cors import CorsPolicy
from gateway.config.limits import Limits, Timeouts
from gateway.http.client_connection import ClientConnections, RequestHandler
from gateway.http.client_request import BodyBudget
from gateway.http.listener import DownstreamListener
from gateway.http.request_headers import TrustedProxies
from gateway.pipeline.pipeline import RequestPipeline
from gateway.relay.http_transport import PodKeys, TransportFactory
from gateway.relay.upstream_pool import UpstreamPool
from gateway.runtime.descriptors import descriptors_wanted, divide_descriptors
from gateway.server.dispatcher import HttpDispatcher, Identify
from routing.decision.router import Router
from routing.rejection import RequestRejected


class HttpServer:
    """One per gateway process; `protocol` is what `loop.create_server` wants."""

    def __init__(  # noqa: PLR0913 - the parts of a gateway that it needs, put together in one place
        self,
        pipeline: RequestPipeline,
        router: Router,
        identify: Identify,
        pods: PodKeys,
        limits: Limits,
        timeouts: Timeouts,
        readiness: Callable[[], bool],
        *,
        cascades: Cascades | None = None,
        trusted: Iterable[IPv4Network | IPv6Network] = (),
        on_rejected: Callable[[RequestRejected], None] = lambda _: None,
        descriptors: int | None = None,
        cors: CorsPolicy | None = None,
    ) -> None:
        """Put the parts together; opens no port.

        `readiness`: whether the fleet can serve; `cascades`: the cascades, by default none; `trusted`: networks of
        trusted proxies; `on_rejected`: called for each rejection that is not counted as a request to the fleet;
        `descriptors`: how many files the process may have open, by default as many as are needed; `cors`: by default
        no page of another origin may call the gateway.
        """
        shares = divide_descriptors(descriptors or descriptors_wanted(limits.max_connections), limits.max_connections)
        self._shares = shares
        self.limits = limits
        self.timeouts = timeouts
        self.body_budget = BodyBudget(limits.max_total_body_bytes, max_extra_bytes=limits.max_body_bytes)
        self.pool = UpstreamPool(timeouts, knows=lambda url: router.fleet.pod(url) is not None, max_open=shares.pods)
        self.dispatcher = HttpDispatcher(
            pipeline,
            router,
            identify,
            TransportFactory(router.fleet, self.pool, pods, self.body_budget, limits),
            cascades or Cascades(router),
            timeouts,
            readiness=readiness,
            on_rejected=on_rejected,
            cors=cors,
        )
        self._connections = ClientConnections(
            self.dispatcher, self.body_budget, limits, timeouts, shares, TrustedProxies(trusted)
        )
        self._listener = DownstreamListener(self._connections)
        self.make_protocol = self._listener.make_protocol
        self.protocol_factory = self._listener.protocol_factory
        self.max_connections = shares.clients
        """Client connections at one time: the limit, or less if the process has too few file descriptors."""

    def __repr__(self) -> str:
        state = ", draining" if self.is_draining else ""
        return f"<HttpServer {self.open_connections} connections, {self.open_requests} requests{state}>"

    def listener_for(self, handler: RequestHandler) -> DownstreamListener:
        """Return another listener with the limits of this server, whose requests go to `handler`."""
        connections = ClientConnections(
            handler, self.body_budget, self.limits, self.timeouts, self._shares, TrustedProxies(())
        )
        return DownstreamListener(connections)

    @property
    def is_draining(self) -> bool:
        """Whether each response closes its connection."""
        return self.dispatcher.is_draining

    @property
    def open_connections(self) -> int:
        """Client connections after their TLS handshake."""
        return len(self._connections.open)

    @property
    def open_requests(self) -> int:
        """Requests in flight to a pod or back."""
        return len(self.dispatcher.in_flight)

    async def drain(self, grace_s: float) -> None:
        """Finish the requests in flight within `grace_s` seconds, then cut what is left and close everything."""
        self.dispatcher.begin_drain()
        await self._listener.drain(grace_s)
        self.close()
        await self._listener.wait_until_closed()
        if self.dispatcher.in_flight:
            await asyncio.wait(self.dispatcher.in_flight)

    def close(self) -> None:
        """Close everything at once."""
        self.dispatcher.begin_drain()
        self._listener.close()
        self.pool.close()
