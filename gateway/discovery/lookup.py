"""Asks DNS which hosts and ports stand behind a name. An empty answer is an answer; no answer is an `Outage`.

UDP first, TCP where an answer was cut short, all servers in turn: the library sees to that (`hearth-gateway[dns]`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.nameserver import Do53Nameserver
from dns.resolver import NXDOMAIN, Answer, NoAnswer

from gateway.config.discovery import DnsPlace

AT_ONCE = 16
"""Questions under way."""

MOST_HOSTS = 4096
"""Who answers must not be able to fill our memory."""


class Outage(Exception):  # noqa: N818 - what happened, as the log names it
    """DNS gave no answer that says anything: refused, failed, silent, nonsense."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """What stands behind a name."""

    found: tuple[tuple[str, int], ...]
    """Host and port, sorted."""
    ttl_s: float
    """How long that holds; without bound where nothing was found."""


class Lookup:
    """One per place."""

    def __init__(self, place: DnsPlace) -> None:
        self._place = place
        self._resolver = _resolver(place)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def hosts(self) -> Hosts:
        """All of them now. Raises `Outage`."""
        place = self._place
        if place.port is not None:
            return _hosts([await self._addresses(place.name, place.port)])
        answer = await self._ask(place.name, "SRV")
        targets = [(str(one.target).rstrip("."), int(one.port)) for one in answer or ()]
        targets = sorted({(host.lower(), port) for host, port in targets if host and port})[:MOST_HOSTS]
        said = Hosts(tuple(targets), _ttl(answer))
        if place.scheme == "https":  # A certificate names hosts, not addresses.
            return said
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._addresses(host, port)) for host, port in targets]
        return _hosts([Hosts((), said.ttl_s), *(one.result() for one in asked)])

    async def _addresses(self, name: str, port: int) -> Hosts:
        """By A records, where there are none by AAAA records: a pod that has both is one pod."""
        answer = await self._ask(name, "A") or await self._ask(name, "AAAA")
        return Hosts(tuple((str(one.address), port) for one in answer or ()), _ttl(answer))

    async def _ask(self, name: str, kind: str) -> Answer | None:
        """None where there is no such name or no such record. Raises `Outage`."""
        try:
            async with self._turns:
                return await self._resolver.resolve(name, kind, search=not self._place.servers)
        except (NXDOMAIN, NoAnswer):
            return None
        except (DNSException, OSError) as error:
            raise Outage(f"{name} {kind}: {type(error).__name__}") from None


def _resolver(place: DnsPlace) -> Resolver:
    """By the name servers of the place, or by the system's. Raises `Outage` where the system has none."""
    try:
        resolver = Resolver(configure=not place.servers)
    except DNSException as error:
        raise Outage(f"no name server: {error}") from None
    if place.servers:
        resolver.nameservers = [_server(words) for words in place.servers]
    resolver.timeout, resolver.lifetime = place.timeout_s, 2 * place.timeout_s
    return resolver


def _server(words: str) -> Do53Nameserver:
    host, _, port = words.rpartition(":")
    return Do53Nameserver(host.removeprefix("[").removesuffix("]"), int(port))


def _ttl(answer: Answer | None) -> float:
    """CNAMEs on the way count too."""
    return inf if answer is None else float(answer.chaining_result.minimum_ttl)


def _hosts(parts: list[Hosts]) -> Hosts:
    found = sorted({host for part in parts for host in part.found})
    return Hosts(tuple(found[:MOST_HOSTS]), min(part.ttl_s for part in parts))
