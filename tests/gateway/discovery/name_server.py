"""A small real name server on loopback, UDP and TCP on one port, that answers as a test wants."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.gateway.fake_pod import Pulse


@dataclass(slots=True)
class Zone:
    """What it answers; may be changed while it runs."""

    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """(name, type) to the records; a name without any does not exist."""
    ttl_s: int = 1
    failure: dns.rcode.Rcode | None = None
    is_silent: bool = False
    is_cut: bool = False
    """Whether what comes by UDP is cut short."""
    address: str = ""
    requested: list[tuple[str, str, str]] = field(default_factory=list)
    """Transport, name and type of every question."""
    pulse: Pulse = field(default_factory=Pulse)

    def put(self, name: str, kind: str, *records: str) -> None:
        self.records[name, kind] = list(records)

    def answer(self, requested: bytes, transport: str) -> bytes | None:
        """An answer in the form of the wire, None where it keeps silent."""
        question = dns.message.from_wire(requested)
        wanted = question.question[0]
        name, kind = wanted.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(wanted.rdtype)
        self.requested.append((transport, name, kind))
        self.pulse.beat()
        if self.is_silent:
            return None
        reply = dns.message.make_response(question)
        reply.flags |= dns.flags.RA
        if self.failure is not None:
            reply.set_rcode(self.failure)
            return reply.to_wire()
        self._fill(reply, name, kind)
        if self.is_cut and transport == "udp":
            reply.answer.clear()
            reply.flags |= dns.flags.TC
        return reply.to_wire(max_size=65_535)

    def _fill(self, reply: dns.message.Message, name: str, kind: str) -> None:
        if alias := self.records.get((name, "CNAME")):
            reply.answer.append(dns.rrset.from_text(f"{name}.", self.ttl_s, "IN", "CNAME", *alias))
            name = alias[0].rstrip(".")
        if not any(known == name for known, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif records := self.records.get((name, kind)):
            reply.answer.append(dns.rrset.from_text(f"{name}.", self.ttl_s, "IN", kind, *records))


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, zone: Zone) -> None:
        self._zone = zone
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._zone.answer(data, "udp")
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def name_server(zone: Zone) -> AsyncIterator[Zone]:
    """The zone is served inside, at `zone.address`."""
    loop = asyncio.get_running_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2), "big")
        stated = zone.answer(await reader.readexactly(length), "tcp")
        if stated is not None:
            writer.write(len(stated).to_bytes(2, "big") + stated)
        writer.close()

    server, held = await _both(answer)
    transport, _ = await loop.create_datagram_endpoint(lambda: _Udp(zone), sock=held)
    zone.address = f"127.0.0.1:{held.getsockname()[1]}"
    try:
        yield zone
    finally:
        transport.close()
        server.close()
        await server.wait_closed()


async def _both(answer: object) -> tuple[asyncio.Server, socket.socket]:
    """A TCP server and a UDP socket on one port: the system names the first, and may have given away the other."""
    for _ in range(50):
        server = await asyncio.start_server(answer, "127.0.0.1", 0)  # type: ignore[arg-type]
        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            held.bind(server.sockets[0].getsockname())
        except OSError:
            held.close()
            server.close()
            continue
        held.setblocking(False)
        return server, held
    raise OSError("no port is free for both UDP and TCP")
