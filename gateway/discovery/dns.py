"""Pods behind a name in DNS, resolved again as its records expire. Needs the extra `hearth-gateway[dns]`.

An empty answer is an answer: there are no pods. Because a resolver that has just lost its upstream may return one too,
it counts only if it is repeated. Without any answer (`DnsUnavailable`) the last list stays in force. The library falls
back from UDP to TCP when an answer is truncated, and tries all servers in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.nameserver import Do53Nameserver
from dns.resolver import NXDOMAIN, Answer, NoAnswer

from gateway.config.discovery import DiscoveredPod, DnsSourceConfig
from gateway.discovery.source import PodsCallback

MAX_CONCURRENT_QUERIES = 16
"""Concurrent queries."""


MAX_HOSTS = 4096
"""Bounds the memory that an answer can take."""


class DnsUnavailable(Exception):  # noqa: N818 - an event, named as in the log
    """DNS gave no usable answer: a failure code, a timeout or malformed data."""


@dataclass(frozen=True, slots=True)
class ResolvedHosts:
    """The hosts behind a name."""

    addresses: tuple[tuple[str, int], ...]
    """Host and port, sorted."""
    ttl_s: float
    """How long the records are valid; infinite without records."""


class DnsResolver:
    """One per place."""

    def __init__(self, config: DnsSourceConfig) -> None:
        self._config = config
        self._resolver = _resolver(config)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def resolve(self) -> ResolvedHosts:
        """Resolve the hosts now. Raises `DnsUnavailable`."""
        config = self._config
        if config.port is not None:
            return _hosts([await self._addresses(config.name, config.port)])
        answer = await self._query(config.name, "SRV")
        targets = [(str(one.target).rstrip("."), int(one.port)) for one in answer or ()]
        targets = sorted({(host.lower(), port) for host, port in targets if host and port})[:MAX_HOSTS]
        answered = ResolvedHosts(tuple(targets), _ttl(answer))
        if config.scheme == "https":  # Certificates contain host names, not addresses.
            return answered
        async with asyncio.TaskGroup() as group:
            lookups = [group.create_task(self._addresses(host, port)) for host, port in targets]
        return _hosts([ResolvedHosts((), answered.ttl_s), *(one.result() for one in lookups)])

    async def _addresses(self, name: str, port: int) -> ResolvedHosts:
        """Resolve A records, AAAA only without any: a pod that has both is one pod."""
        answer = await self._query(name, "A") or await self._query(name, "AAAA")
        return ResolvedHosts(tuple((str(one.address), port) for one in answer or ()), _ttl(answer))

    async def _query(self, name: str, kind: str) -> Answer | None:
        """Query one record type. Returns None if the name or record does not exist. Raises `DnsUnavailable`."""
        try:
            async with self._slots:
                return await self._resolver.resolve(name, kind, search=not self._config.servers)
        except (NXDOMAIN, NoAnswer):
            return None
        except (DNSException, OSError) as error:
            raise DnsUnavailable(f"{name} {kind}: {type(error).__name__}") from None


LogFunction = Callable[..., None]


@dataclass(frozen=True, slots=True)
class DnsIntervals:
    """How often a name is resolved, in seconds."""

    min_interval_s: float = 1.0
    """Minimum between two queries, however short the TTL."""
    jitter: float = 0.1
    """Maximum share by which each pause is shortened at random, to spread the queries of many gateways."""


class DnsSource:
    """One per place."""

    def __init__(
        self,
        config: DnsSourceConfig,
        *,
        log_event: LogFunction,
        draw: Callable[[], float],
        pace: DnsIntervals | None = None,
        make_lookup: Callable[[DnsSourceConfig], DnsResolver] = DnsResolver,
    ) -> None:
        self.name = f"dns:{config.name}" + (f":{config.port}" if config.port else "")
        self.trouble = ""
        self._config = config
        self._log_event = log_event
        self._draw = draw
        self._pace = pace or DnsIntervals()
        self._make_lookup = make_lookup
        self._last: tuple[DiscoveredPod, ...] = ()

    async def follow(self, notify: PodsCallback) -> None:
        """Report the pods after each answer of DNS, until cancelled."""
        pause_s, lookup = self._pace.min_interval_s, None
        while True:
            try:
                lookup = lookup or self._make_lookup(self._config)
                hosts = await lookup.resolve()
            except* DnsUnavailable as outages:
                self._note_outage(str(outages.exceptions[0]))
                pause_s = min(2 * pause_s, self._config.max_interval_s)
            else:
                self._note_answer()
                pause_s = self._take(hosts, notify)
            await asyncio.sleep(pause_s * (1 - self._pace.jitter * self._draw()))

    def _take(self, hosts: ResolvedHosts, notify: PodsCallback) -> float:
        """Report the pods found. Returns the seconds until the next query."""
        found = tuple(self._found(host, port) for host, port in hosts.addresses)
        is_doubtful, self._last = not found and bool(self._last), found
        if is_doubtful:
            return self._pace.min_interval_s
        notify(found)
        return max(self._pace.min_interval_s, min(hosts.ttl_s, self._config.max_interval_s))

    def _found(self, host: str, port: int) -> DiscoveredPod:
        config = self._config
        return DiscoveredPod(
            f"{config.scheme}://{f'[{host}]' if ':' in host else host}:{port}", config.pool, config.facts
        )

    def _note_outage(self, words: str) -> None:
        if not self.trouble:
            self._log_event("warning", "dns_lookup_failed", source=self.name, error=words)
        self.trouble = words

    def _note_answer(self) -> None:
        if self.trouble:
            self._log_event("info", "dns_lookup_recovered", source=self.name)
        self.trouble = ""


def _resolver(config: DnsSourceConfig) -> Resolver:
    """Use the configured name servers, or those of the system. Raises `DnsUnavailable` if the system has none."""
    try:
        resolver = Resolver(configure=not config.servers)
    except DNSException as error:
        raise DnsUnavailable(f"no name server: {error}") from None
    if config.servers:
        resolver.nameservers = [_server(words) for words in config.servers]
    resolver.timeout, resolver.lifetime = config.timeout_s, 2 * config.timeout_s
    return resolver


def _server(words: str) -> Do53Nameserver:
    host, _, port = words.rpartition(":")
    return Do53Nameserver(host.removeprefix("[").removesuffix("]"), int(port))


def _ttl(answer: Answer | None) -> float:
    """Return the minimum TTL, including CNAMEs."""
    return inf if answer is None else float(answer.chaining_result.minimum_ttl)


def _hosts(parts: list[ResolvedHosts]) -> ResolvedHosts:
    found = sorted({host for part in parts for host in part.addresses})
    return ResolvedHosts(tuple(found[:MAX_HOSTS]), min(part.ttl_s for part in parts))
