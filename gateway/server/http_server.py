"""The HTTP server of a gateway process: listener, dispatcher and upstream connection pool, and how they are drained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network

from gateway.cascades.cascades import Ladders
from gateway.config.cors import Cors
from gateway.config.limits import Limits, Timeouts
from gateway.http.client_connection import Connections
from gateway.http.client_request import Budget
from gateway.http.listener import DownstreamListener
from gateway.http.request_headers import Trusted
from gateway.pipeline.pipeline import Passage
from gateway.relay.http_transport import Carriers
from gateway.relay.upstream_pool import Pool
from gateway.relay.upstream_request import PodKeys
from gateway.runtime.descriptors import descriptors_wanted, share_out
from gateway.server.dispatcher import Desk, Identify
from routing.decision.router import Router
from routing.rejection import Refused


class Front:
    """One per gateway process; `protocol` is what `loop.create_server` wants."""

    def __init__(  # noqa: PLR0913 - the parts of a gateway that it needs, put together in one place
        self,
        passage: Passage,
        router: Router,
        identify: Identify,
        pods: PodKeys,
        limits: Limits,
        timeouts: Timeouts,
        readiness: Callable[[], bool],
        *,
        ladders: Ladders | None = None,
        trusted: Iterable[IPv4Network | IPv6Network] = (),
        on_refused: Callable[[Refused], None] = lambda _: None,
        descriptors: int | None = None,
        cors: Cors | None = None,
    ) -> None:
        """Put the parts together; opens no port.

        `readiness`: whether the fleet can serve; `ladders`: the cascades, by default none; `trusted`: networks of
        trusted proxies; `on_refused`: called for each rejection that is not counted as a request to the fleet;
        `descriptors`: how many files the process may have open, by default as many as are needed; `cors`: by default
        no page of another origin may call the gateway.
        """
        shares = share_out(descriptors or descriptors_wanted(limits.max_connections), limits.max_connections)
        self.limits = limits
        self.timeouts = timeouts
        self.budget = Budget(limits.max_bodies_bytes, largest=limits.max_body_bytes)
        self.pool = Pool(timeouts, knows=lambda url: router.fleet.pod(url) is not None, max_open=shares.pods)
        self.desk = Desk(
            passage,
            router,
            identify,
            Carriers(router.fleet, self.pool, pods, self.budget, limits),
            ladders or Ladders(router),
            timeouts,
            readiness=readiness,
            on_refused=on_refused,
            cors=cors,
        )
        self._connections = Connections(self.desk, self.budget, limits, timeouts, shares, Trusted(trusted))
        self._listener = DownstreamListener(self._connections)
        self.protocol = self._listener.protocol
        self.door = self._listener.door
        self.max_connections = shares.clients
        """Client connections at one time: the limit, or less if the process has too few file descriptors."""

    def __repr__(self) -> str:
        state = ", draining" if self.is_draining else ""
        return f"<HttpServer {self.open_connections} connections, {self.open_requests} requests{state}>"

    @property
    def is_draining(self) -> bool:
        """Whether each response closes its connection."""
        return self.desk.is_draining

    @property
    def open_connections(self) -> int:
        """Client connections after their TLS handshake."""
        return len(self._connections.open)

    @property
    def open_requests(self) -> int:
        """Requests in flight to a pod or back."""
        return len(self.desk.in_flight)

    async def drain(self, grace_s: float) -> None:
        """Finish the requests in flight within `grace_s` seconds, then cut what is left and close everything."""
        self.desk.begin_drain()
        await self._listener.drain(grace_s)
        self.close()
        await self._listener.wait_until_left()
        if self.desk.in_flight:
            await asyncio.wait(self.desk.in_flight)

    def close(self) -> None:
        """Close everything at once."""
        self.desk.begin_drain()
        self._listener.close()
        self.pool.close()
