"""The traffic port: makes a protocol for every client, knows who is connected, and empties itself when it has to go."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network

from gateway.ladders.ladders import Ladders
from gateway.ladders.words import HEADERS as RUNG_HEADERS
from gateway.limits import Limits, Timeouts
from gateway.proxy.carrying.carrier import PodKeys
from gateway.proxy.carrying.making import Carriers
from gateway.proxy.client.asked import KEPT_HEADERS, Asked, Budget
from gateway.proxy.client.connection import ClientConnection
from gateway.proxy.client.reply import Reply
from gateway.proxy.client.spoken import Trusted
from gateway.proxy.desk import Desk, Identify
from gateway.proxy.leading import LookAt
from gateway.proxy.patrol import Patrol
from gateway.proxy.pods.pool import Pool
from gateway.spine.passage import Passage
from routing.refusal import Reason, Refused
from routing.router import Router

__all__ = ["Front", "Identify", "PodKeys"]

OVERFLOW = 256
"""Connections beyond the limit that are told so; still more are just closed."""

LEAVING_S = 1.0
"""How long what is cut at the end of a drain may take to reach its client."""


class Front:
    """One per gateway process; `protocol` is what `loop.create_server` wants."""

    def __init__(
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
    ) -> None:
        """`ladders`: names that stand for several models, by default none; `trusted`: where those stand who may speak
        for others.
        """
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
        self.pool = Pool(timeouts, knows=lambda url: router.fleet.pod(url) is not None)
        self.kept_headers: set[bytes] = set(KEPT_HEADERS) | set(RUNG_HEADERS)
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

    def ask_to_leave(self) -> None:
        """From now on each answer closes its connection; whoever comes is served still."""
        self.is_draining = True

    async def drain(self, grace_s: float) -> None:
        """Take no more than is under way, wait for it, then cut what is left.

        A request that comes while its connection was already open is served, and its connection closed: what the client
        could not know is not held against it. So those between two requests get a last call.
        """
        self.ask_to_leave()
        for connection in tuple(self._connections):
            connection.say_last_call()
        await self._wait_until_empty(grace_s)
        for connection in tuple(self._connections):
            connection.cut(Refused(Reason.GATEWAY_DRAINING, "The gateway is shutting down.", retry_after_s=1.0))
        await self._wait_until_empty(LEAVING_S)
        self.close()
        await self._wait_until_empty(LEAVING_S)
        if self.desk.under_way.tasks:
            await asyncio.wait(self.desk.under_way.tasks)

    def close(self) -> None:
        """Close everything at once."""
        self.is_draining = True
        for connection in tuple(self._connections):
            connection.transport.abort()
        self.pool.close()
        self._patrol.stop()

    def cut_silent(self, pod: str, silent_s: float) -> int:
        """A pod takes no connections any more: give up those requests there that have had no byte for so long.

        They end as lost, so that another pod answers where the client was sent nothing yet. Returns how many.
        """
        return self.pool.cut_silent(pod, silent_s)

    # -- what a connection asks for --------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> bool:
        is_room = len(self._connections) < self.limits.max_connections
        if not is_room and len(self._connections) >= self.limits.max_connections + OVERFLOW:
            connection.transport.abort()
        self._connections.add(connection)
        self._patrol.watch(connection)
        return is_room

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

    async def _wait_until_empty(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while self._connections:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            pass
