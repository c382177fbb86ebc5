"""Tickets of requests that Envoy returns: each serves one request, once, within its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.ext_proc.returned import TICKET_LIFE_S, ReturnHandler, ReturnTickets
from gateway.http.client_request import IncomingRequest
from gateway.http.endpoints import find_endpoint
from gateway.pipeline.record import Frontend
from tests.gateway.http.rig import CHAT_PATH, RawClient, Rig, a_chat, a_rig, request_bytes
from tests.gateway.http.wire import answer_bytes, chat_answer

MAX_TICKETS = 3


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def issued(tickets: ReturnTickets) -> str:
    """A ticket for a chat of an anonymous caller."""
    incoming = IncomingRequest()
    incoming.endpoint = find_endpoint(CHAT_PATH.encode())
    return tickets.issue(incoming, Frontend("extproc", "buffered"))


@asynccontextmanager
async def a_listener() -> AsyncIterator[tuple[Rig, ReturnTickets, RawClient, Clock]]:
    """A return listener before a pod, with one connection to it."""
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes(chat_answer())])
        clock = Clock()
        tickets = ReturnTickets(clock, MAX_TICKETS)
        listener = rig.front.listener_for(ReturnHandler(rig.front.dispatcher, tickets))
        server = await asyncio.get_running_loop().create_server(listener.make_protocol, "127.0.0.1", 0)
        client = RawClient(*await asyncio.open_connection(*server.sockets[0].getsockname()[:2]))
        try:
            yield rig, tickets, client, clock
        finally:
            client.leave()
            server.close()
            listener.close()


async def test_a_ticket_serves_one_request() -> None:
    """Who has seen a ticket on its way cannot use it again; what is left of it is not kept."""
    async with a_listener() as (rig, tickets, client, _):
        ticket = issued(tickets)
        first = await client.ask(CHAT_PATH, a_chat(), x_hearth_return=ticket)
        assert first.status == 200, first.body
        again = await client.ask(CHAT_PATH, a_chat(), x_hearth_return=ticket)
        assert (again.status, again.code) == (401, "invalid_api_key")
        assert b"once" in again.body
        assert len(tickets) == 0
        assert len(rig.pod.questions) == 1


async def test_two_requests_with_one_ticket_at_a_time() -> None:
    """Both heads show a ticket that is valid; the one whose body is complete first has it."""
    async with a_listener() as (rig, tickets, client, _):
        raw = request_bytes(CHAT_PATH, a_chat(), x_hearth_return=issued(tickets))
        other = RawClient(*await asyncio.open_connection(*client.writer.get_extra_info("peername")[:2]))
        await other.send(raw[:-1])
        await client.send(raw)
        assert (await client.answer()).status == 200
        await other.send(raw[-1:])
        assert (await other.answer()).status == 401
        other.leave()
        assert len(rig.pod.questions) == 1


async def test_a_request_that_did_not_arrive_may_be_sent_again() -> None:
    """Envoy's retry after a connection that broke in the middle of a request has the same ticket."""
    async with a_listener() as (_, tickets, client, _clock):
        raw = request_bytes(CHAT_PATH, a_chat(), x_hearth_return=issued(tickets))
        broken = RawClient(*await asyncio.open_connection(*client.writer.get_extra_info("peername")[:2]))
        await broken.send(raw[:-1])
        broken.leave()
        await client.send(raw)
        assert (await client.answer()).status == 200


async def test_a_ticket_expires() -> None:
    """After its time it serves nothing, and the next one that is issued drops it; so does one too many."""
    async with a_listener() as (_, tickets, client, clock):
        ticket = issued(tickets)
        clock.now_s = TICKET_LIFE_S
        assert (await client.ask(CHAT_PATH, a_chat(), x_hearth_return=ticket)).status == 401
        kept = [issued(tickets) for _ in range(MAX_TICKETS + 1)]
        assert len(tickets) == MAX_TICKETS
        assert (await client.ask(CHAT_PATH, a_chat(), x_hearth_return=kept[0])).status == 401
        assert (await client.ask(CHAT_PATH, a_chat(), x_hearth_return=kept[1])).status == 200
