"""Builds the shell behind Envoy from a gateway's parts, opens its ports, and empties it in the end."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from gateway.config.extproc import ExtProc
from gateway.config.listening import Address
from gateway.config.values import Settings
from gateway.ext_proc.callers import CallerCheck
from gateway.ext_proc.exchange import Exchange
from gateway.ext_proc.health import Health
from gateway.ext_proc.http2.bounds import Bounds
from gateway.ext_proc.http2.handler import Serve
from gateway.ext_proc.http2.stream import Stream, Taker
from gateway.ext_proc.listener import EMPTYING_S, Port
from gateway.ext_proc.metrics import Exposition
from gateway.ext_proc.shared import Office, Rules
from gateway.ext_proc.transport import Means
from gateway.http.listener import Front
from gateway.http.request_headers import is_within
from gateway.pipeline.attempt import LegEnd
from gateway.relay.http_transport import PodKeys
from gateway.runtime.ports import addresses_of, cannot_listen
from gateway.runtime.tls import listener_tls, renew
from routing.decision.router import Router
from routing.rejection import Reason, Refused

EXT_PROC = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"

BACKLOG = 1024

KNOWN_S = 10.0
"""The longest wait for Envoy's health checks to hear that we go: they come every second or two."""

Say = Callable[..., None]


class EnvoyShell:
    """One per gateway process. Its streams are served by the desk that serves clients of our own port."""

    def __init__(
        self,
        settings: Settings,
        words: ExtProc,
        front: Front,
        router: Router,
        pods: PodKeys,
        *,
        is_ready: Callable[[], bool],
        take_end: Callable[[str, LegEnd], object],
        number: int,
        say: Say,
    ) -> None:
        """`number` tells workers of one host apart, 0 where there is but one: each has its port, or they share; `say`
        logs.
        """
        self._words = words
        self._number = max(0, number - 1)
        self._is_one_of_several = number > 0
        loop = asyncio.get_running_loop()
        trusted: tuple[IPv4Network | IPv6Network, ...] = settings.trusted_proxies
        self.office = Office(
            front.desk,
            router.fleet,
            Means(pods, front.desk.carriers.takes_priority, settings.limits.kept_answer_bytes, words.endpoints),
            budget=front.budget,
            kept_headers=front.kept_headers,
            rules=Rules(
                settings.limits,
                settings.timeouts,
                queue_s=words.queue_s,
                sample=words.sample,
                trusts=lambda source: words.trust_headers or bool(source and trusted and is_within(source, trusted)),
            ),
            pass_over=lambda url: take_end(url, LegEnd.UNREACHABLE),
            clock=loop.time,
            draw=random.Random().random,  # noqa: S311 - which answers are looked at is no secret
        )
        health = Health(is_ready)
        self._checkers = health.checkers
        services: dict[bytes, Serve] = {EXT_PROC: self._exchange, **self.office.log.services(), **health.services()}
        bounds = Bounds(
            max_streams=settings.limits.max_connections,
            max_message_bytes=settings.limits.max_body_bytes + (1 << 20),
            preface_s=settings.timeouts.header_s,
            frame_s=settings.timeouts.body_s,
        )
        common = front.budget, self.office.crowd, bounds
        self.callers = CallerCheck(loop.time, say)
        guard = None if words.token is None else self.callers.with_token(words.token, health.services())
        self.port = Port(services, *common, guard=guard, on_parted=self._checkers.forget)
        self.health_port = Port(health.services(), *common, on_parted=self._checkers.forget)
        self.tls = listener_tls(words.tls, speaks="h2") if words.tls else None
        if self.tls is not None and words.tls is not None and words.tls.client_ca is not None:
            self.callers.watch_handshakes(self.tls)
        self.exposition = Exposition(self.port, self.office, self.callers)

    def _exchange(self, stream: Stream) -> Taker:
        return Exchange(self.office, stream)

    async def open(self, stack: AsyncExitStack) -> dict[str, list[str]]:
        """Listen until the stack is left. Returns where, by name. Raises `CannotListen`."""
        listening = {"extproc": await self._listen(stack, "extproc", self._words.listen, self.port, self.tls)}
        if self._words.health is not None:
            where = self._words.health
            listening["extproc_health"] = await self._listen(stack, "extproc.health", where, self.health_port, None)
        return listening

    async def _listen(
        self, stack: AsyncExitStack, name: str, where: Address, port: Port, tls: ssl.SSLContext | None
    ) -> list[str]:
        shares = self._words.shares_port
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
            raise cannot_listen(name, where, error) from None
        stack.callback(port.close)
        return addresses_of(server.sockets)

    def renewing(self, say: Say) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What keeps its certificate fresh while the gateway runs."""
        tls, words = self.tls, self._words
        return [] if tls is None else [lambda: renew(tls, lambda: words.tls, say)]

    async def drain(self, grace_s: float) -> None:
        """Serve on until Envoy's checks know, ask for no more, finish what is under way, then end what is left with a
        word; health to the last.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + grace_s
        await self._checkers.wait_until_known(min(KNOWN_S, grace_s / 2))
        await self.port.leave()
        left_s = max(0.0, ends_s - loop.time())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cut_late(left_s))
            group.create_task(self.port.drain(left_s))
        await self.health_port.leave()
        await self.health_port.drain(EMPTYING_S)

    async def _cut_late(self, grace_s: float) -> None:
        """Who still waits for an engine when the grace is over is told so."""
        await self.port.wait_until_empty(grace_s * 0.9)
        for exchange in self.office.under_way():
            exchange.cut(Refused(Reason.GATEWAY_DRAINING, "The gateway is shutting down.", retry_after_s=1.0))
