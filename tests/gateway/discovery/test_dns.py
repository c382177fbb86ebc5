"""Pods behind names of a real name server are found; no answer costs nothing, and an empty one is believed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import dns.rcode
import pytest

from gateway.config.discovery import DiscoveredPod, DnsSourceConfig
from gateway.discovery.dns import DnsIntervals, DnsResolver, DnsSource, DnsUnavailable, ResolvedHosts
from routing.facts import PodFacts, Role
from tests.gateway.discovery.following import Heard, following
from tests.gateway.discovery.name_server import Zone, name_server

NAME, SRV = "vllm.example", "_http._tcp.vllm.example"

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"

PATIENT_S = 60.0
"""For answers that come: the machine may be busy."""

SILENT, AGAIN = "dns_lookup_failed", "dns_lookup_recovered"


def place(zone: Zone, name: str = NAME, port: int | None = 8000, *, timeout_s: float = PATIENT_S) -> DnsSourceConfig:
    return DnsSourceConfig(name, port, servers=(zone.address,), timeout_s=timeout_s, max_interval_s=0.02)


@asynccontextmanager
async def asking(requested: DnsSourceConfig) -> AsyncIterator[Heard]:
    received = Heard()
    source = DnsSource(
        requested, log_event=received.log_event, draw=lambda: 0.5, pace=DnsIntervals(min_interval_s=0.01)
    )
    async with following(source, received):
        yield received


@pytest.fixture
async def zone() -> AsyncIterator[Zone]:
    async with name_server(Zone()) as served:
        served.put(NAME, "A", "10.0.0.2", "10.0.0.1")
        yield served


async def test_addresses_are_pods_and_change(zone: Zone) -> None:
    """With the facts that the configuration gives all of them."""
    facts = PodFacts(region="eu", role=Role.PREFILL)
    named = DnsSourceConfig(
        NAME, 8000, servers=(zone.address,), timeout_s=PATIENT_S, max_interval_s=0.02, pool="p", facts=facts
    )
    async with asking(named) as received:
        await received.hears(A, B)
        assert received.reported[-1][0] == DiscoveredPod(A, "p", facts)
        zone.put(NAME, "A", "10.0.0.2")
        await received.hears(B)
    assert received.stated == []


async def test_a_pod_with_two_addresses_is_one(zone: Zone) -> None:
    """IPv6 counts where there is no IPv4."""
    zone.put(NAME, "AAAA", "fd00::1")
    hosts = await DnsResolver(place(zone)).resolve()
    assert hosts == ResolvedHosts((("10.0.0.1", 8000), ("10.0.0.2", 8000)), 1.0)
    zone.put(NAME, "A")
    async with asking(place(zone)) as received:
        await received.hears("http://[fd00::1]:8000")


async def test_srv_records_report_the_port(zone: Zone) -> None:
    """Their targets are looked up in turn; for TLS they are the names in the certificate."""
    zone.put(SRV, "SRV", "0 10 8001 One.example.", "0 10 8002 two.example.", "0 10 8003 gone.example.")
    zone.put("one.example", "A", "10.0.0.1")
    zone.put("two.example", "AAAA", "fd00::2")
    hosts = await DnsResolver(place(zone, SRV, None)).resolve()
    assert hosts.addresses == (("10.0.0.1", 8001), ("fd00::2", 8002))
    tls = DnsSourceConfig(SRV, None, "https", servers=(zone.address,), timeout_s=PATIENT_S)
    assert (await DnsResolver(tls).resolve()).addresses == (
        ("gone.example", 8003),
        ("one.example", 8001),
        ("two.example", 8002),
    )


async def test_a_service_that_says_it_is_not_there_has_no_pods(zone: Zone) -> None:
    """RFC 2782: the root as the only target."""
    zone.put(SRV, "SRV", "0 0 0 .")
    assert (await DnsResolver(place(zone, SRV, None)).resolve()).addresses == ()


async def test_aliases_are_followed_and_the_shortest_time_holds(zone: Zone) -> None:
    """A CNAME that runs out earlier is asked for again earlier."""
    zone.put("alias.example", "CNAME", f"{NAME}.")
    zone.ttl_s = 7
    hosts = await DnsResolver(place(zone, "alias.example")).resolve()
    assert (len(hosts.addresses), hosts.ttl_s) == (2, 7.0)


async def test_an_answer_that_was_cut_comes_by_tcp(zone: Zone) -> None:
    """A thousand pods do not fit into a datagram."""
    zone.put(NAME, "A", *(f"10.0.{high}.{low}" for high in range(4) for low in range(250)))
    zone.is_cut = True
    hosts = await DnsResolver(place(zone)).resolve()
    assert len(hosts.addresses) == 1000
    assert ("tcp", NAME, "A") in zone.requested


@pytest.mark.parametrize("is_there", [True, False])
async def test_an_empty_answer_is_believed(zone: Zone, *, is_there: bool) -> None:
    """No such record or no such name: there are no pods, and nobody speaks of an outage."""
    async with asking(place(zone)) as received:
        await received.hears(A, B)
        if is_there:
            zone.put(NAME, "A")
        else:
            zone.records.clear()
        await received.hears()
    assert received.stated == []


async def test_an_empty_answer_counts_when_it_is_reported_twice() -> None:
    """A resolver that has just lost its upstream says so once."""

    class Flickering(DnsResolver):
        def __init__(self) -> None:
            self.stated = 0

        async def resolve(self) -> ResolvedHosts:
            self.stated += 1
            return ResolvedHosts((), inf) if self.stated % 2 == 0 else ResolvedHosts((("10.0.0.1", 8000),), 0.0)

    flickering, received = Flickering(), Heard()
    source = DnsSource(
        DnsSourceConfig(NAME, 8000, max_interval_s=0.01),
        log_event=received.log_event,
        draw=lambda: 0.5,
        pace=DnsIntervals(min_interval_s=0.0),
        make_lookup=lambda _: flickering,
    )
    async with following(source, received):
        await received.until(lambda: len(received.reported) > 5)
    assert all(received.reported)


@pytest.mark.parametrize("failure", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
async def test_a_failing_server_costs_nothing(zone: Zone, failure: dns.rcode.Rcode) -> None:
    """The last list stands, the log says so once, and what is said afterwards counts again."""
    async with asking(place(zone, timeout_s=1.0)) as received:
        await received.hears(A, B)
        zone.failure = failure
        await received.until(lambda: SILENT in received.stated)
        assert received.urls == [A, B]
        zone.put(NAME, "A", "10.0.0.1")
        zone.failure = None
        await received.hears(A)
    assert received.stated[:2] == [SILENT, AGAIN]
    assert all(received.reported)


async def test_a_silent_server_costs_nothing(zone: Zone) -> None:
    """The same where nobody answers at all."""
    async with asking(place(zone, timeout_s=0.2)) as received:
        await received.hears(A, B)
        zone.is_silent = True
        await received.until(lambda: SILENT in received.stated)
        zone.is_silent = False
        await received.until(lambda: AGAIN in received.stated)
        await received.hears(A, B)
    assert all(received.reported)


async def test_no_answer_is_an_outage_with_a_name(zone: Zone) -> None:
    """So that the log says what was asked."""
    zone.failure = dns.rcode.SERVFAIL
    with pytest.raises(DnsUnavailable, match=r"vllm\.example A: "):
        await DnsResolver(place(zone, timeout_s=0.3)).resolve()
