"""The traffic port: makes a protocol for every client, knows who is connected, and empties itself when it has to go."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl
from collections.abc import Callable, Iterable, Sized
from ipaddress import IPv4Network, IPv6Network

from gateway.cascades.cascades import Ladders
from gateway.cascades.constraints import HEADERS as RUNG_HEADERS
from gateway.config.port_limits import Limits, Timeouts
from gateway.http.client_connection import ClientConnection
from gateway.http.client_request import KEPT_HEADERS, Asked, Budget
from gateway.http.cors import KEPT_FOR_CORS, Cors
from gateway.http.dispatcher import Desk, Identify
from gateway.http.inference import LookAt
from gateway.http.request_headers import Trusted
from gateway.http.response_writer import Reply
from gateway.http.timeout_sweeper import Patrol
from gateway.http.tls_handshake import Handshake
from gateway.pipeline.pipeline import Passage
from gateway.relay.http_transport import PodKeys
from gateway.relay.transport_factory import Carriers
from gateway.relay.upstream_pool import Pool
from gateway.runtime.closing import KNOCKING_S
from gateway.runtime.descriptors import descriptors_wanted, share_out
from routing.decision.router import Router
from routing.rejection import Reason, Refused

__all__ = ["Front", "Identify", "PodKeys"]

LEAVING_S = 1.0
"""How long what is cut at the end of a drain may take to reach its client."""


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
        """`ladders`: names that stand for several models, by default none; `trusted`: where those stand who may speak
        for others; `descriptors`: how many files the process may have open, by default as many as are needed; `cors`:
        which web pages may ask, by default none.
        """
        self._shares = share_out(descriptors or descriptors_wanted(limits.max_connections), limits.max_connections)
        self._handshakes: set[Handshake] = set()
        self._connections: set[ClientConnection] = set()
        # 96 random bits for each start, so that no two processes make the same id, and a count for its requests. An id
        # finds a receipt on the admin port and nothing else: who knows one knows the next one's, and gains nothing.
        self._id_prefix = secrets.token_hex(12)
        self._id_count = itertools.count()
        self._left = asyncio.Event()
        self._readiness = readiness
        self._trusts = Trusted(trusted)
        self._patrol = Patrol(timeouts.header_s, timeouts.body_s, timeouts.idle_s, timeouts.client_stall_s)
        self.limits = limits
        self.timeouts = timeouts
        self.budget = Budget(limits.max_bodies_bytes, largest=limits.max_body_bytes)
        self.pool = Pool(timeouts, knows=lambda url: router.fleet.pod(url) is not None, max_open=self._shares.pods)
        self.kept_headers: set[bytes] = set(KEPT_HEADERS) | set(RUNG_HEADERS) | set(KEPT_FOR_CORS if cors else ())
        self.is_draining = False
        self.desk = Desk(
            passage,
            router,
            identify,
            Carriers(router.fleet, self.pool, pods, self.budget, limits),
            ladders or Ladders(router),
            timeouts,
            readiness=self._is_ready,
            on_refused=on_refused,
            cors=cors,
        )

    def look_with(self, look_at: LookAt) -> None:
        """Have it found out what engines hold of a request before it is placed."""
        self.desk.leading.look_at = look_at

    def heed_headers(self, names: Iterable[str]) -> None:
        """Keep these as well: a policy has given them a meaning."""
        self.kept_headers.update(name.lower().encode("latin-1") for name in names)

    def __repr__(self) -> str:
        state = ", draining" if self.is_draining else ""
        return f"<Front {self.open_connections} connections, {self.open_requests} requests{state}>"

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    @property
    def open_requests(self) -> int:
        """Requests on their way to a pod or back."""
        return len(self.desk.under_way.tasks)

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one client's connection."""
        return ClientConnection(self)

    def door(self, tls: ssl.SSLContext | None) -> Callable[[], asyncio.Protocol]:
        """Make protocols for connections as they are accepted: with TLS, they count from before the handshake on."""
        if tls is None:
            return self.protocol
        return lambda: Handshake(tls, self, self.protocol, self.timeouts.header_s)

    @property
    def max_connections(self) -> int:
        """Clients' connections at one time: the limit, or less where the process has too few descriptors."""
        return self._shares.clients

    def ask_to_leave(self) -> None:
        """From now on each answer closes its connection; whoever comes is served still."""
        self.is_draining = True

    async def drain(self, grace_s: float) -> None:
        """Take no more than is under way, wait for it, then cut what is left.

        A request that comes while its connection was already open is served, and its connection closed: what the client
        could not know is not held against it. So those between two requests get a last call.
        """
        self.ask_to_leave()
        await self._wait_until_empty(self._handshakes, min(grace_s, KNOCKING_S))
        for handshake in tuple(self._handshakes):
            handshake.abort()
        for connection in tuple(self._connections):
            connection.say_last_call()
        await self._wait_until_empty(self._connections, grace_s)
        for connection in tuple(self._connections):
            connection.cut(Refused(Reason.GATEWAY_DRAINING, "The gateway is shutting down.", retry_after_s=1.0))
        await self._wait_until_empty(self._connections, LEAVING_S)
        self.close()
        await self._wait_until_empty(self._connections, LEAVING_S)
        if self.desk.under_way.tasks:
            await asyncio.wait(self.desk.under_way.tasks)

    def close(self) -> None:
        """Close everything at once."""
        self.is_draining = True
        for connection in tuple(self._connections):
            connection.transport.abort()
        for handshake in tuple(self._handshakes):
            handshake.abort()
        self.pool.close()
        self._patrol.stop()

    def cut_silent(self, pod: str, silent_s: float) -> int:
        """A pod takes no connections any more: give up those requests there that have had no byte for so long.

        They end as lost, so that another pod answers where the client was sent nothing yet. Returns how many.
        """
        return self.pool.cut_silent(pod, silent_s)

    # -- what a connection asks for --------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> bool:
        open_now, most = len(self._connections), self._shares.clients
        is_room = open_now < most
        if not is_room and open_now >= most + self._shares.overflow:
            connection.transport.abort()
        self._connections.add(connection)
        self._patrol.watch(connection)
        return is_room

    def may_shake(self, handshake: Handshake) -> bool:
        """Count a connection that begins a TLS handshake. Returns whether there is room for it, or to tell it no."""
        if len(self._connections) + len(self._handshakes) >= self._shares.clients + self._shares.overflow:
            return False
        self._handshakes.add(handshake)
        return True

    def has_shaken(self, handshake: Handshake) -> None:
        self._handshakes.discard(handshake)
        self._left.set()

    def forget(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self._patrol.leave(connection)
        self._left.set()

    def route(self, asked: Asked, transport: asyncio.Transport) -> None:
        self.desk.route(asked, is_trusted=self._trusts(transport))

    def serve(self, asked: Asked, reply: Reply) -> None:
        self.desk.serve(asked, reply)

    def new_id(self) -> str:
        return f"{self._id_prefix}{next(self._id_count):08x}"

    def _is_ready(self) -> bool:
        return not self.is_draining and self._readiness()

    async def _wait_until_empty(self, open_ones: Sized, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while open_ones:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            pass
