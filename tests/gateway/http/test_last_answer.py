"""The last answer of a connection arrives whole, whatever its client has sent behind its request."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.limits import Limits
from gateway.http import client_connection as connection
from tests.gateway.http.rig import CHAT_PATH, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import answer_bytes


@pytest.mark.parametrize("way", ["asked for", "draining"])
async def test_the_last_answer_is_not_lost_to_what_was_sent_behind_its_request(way: str) -> None:
    """More than sockets hold is still to be read when the connection is ended, and bytes that nobody wants lie unread:
    to close then would reset it, and the rest of the answer be gone.
    """
    words, behind = "x" * (6 << 20), request_bytes("/health") * 20_000
    async with a_rig(limits=Limits(max_pipelined_requests=4)) as rig:
        rig.pod.plays([answer_bytes({"said": words})])
        client = await rig.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        if way == "draining":
            rig.front.dispatcher.begin_drain()
        headers = {"connection": "close"} if way == "asked for" else {}
        sending = asyncio.create_task(client.send(request_bytes(CHAT_PATH, a_chat(), **headers) + behind))
        await until(lambda: rig.pod.questions)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await client.answer()
        assert answer.headers["connection"] == "close"
        assert answer.json() == {"said": words}
        assert await client.is_closed()
        await asyncio.gather(sending, return_exceptions=True)
        await rig.is_quiet()


async def test_who_does_not_close_after_the_last_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long he would stay."""
    monkeypatch.setattr(connection, "CLOSE_LINGER_S", 0.05)
    async with a_rig() as rig:
        client = await rig.client()
        assert (await client.ask("/health", connection="close")).status == 200
        await until(lambda: not rig.front.open_connections)
