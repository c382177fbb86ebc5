"""The gateway alone: as many answers as requests, an ambiguous request refused, and nothing hidden ever answered."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.gateway.http.rig import RawClient, a_rig
from tests.gateway.http.scripted import read_head
from tests.smuggling.asking import is_not_disturbed
from tests.smuggling.cases import CASES, HIDDEN, Case, post


async def statuses(client: RawClient, count: int) -> tuple[list[int], bytes]:
    """So many answers, interim ones included, and all that was said in their bodies."""
    found: list[int] = []
    stated = b""
    while len(found) < count:
        head = await read_head(client.reader)
        assert head is not None, (found, stated)
        found.append(int(head[0].split(" ")[1]))
        with suppress(KeyError):
            stated += await client.reader.readexactly(int(head[1]["content-length"]))
    return found, stated


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("is_split", [False, True])
async def test_nothing_is_read_in_two_ways(case: Case, is_split: bool) -> None:
    """In one piece or byte by byte; what is refused ends its connection, what is served leaves it whole."""
    async with a_rig() as rig, asyncio.timeout(60):
        client, port = await rig.client(), rig.server.sockets[0].getsockname()[1]
        with suppress(ConnectionError):
            for piece in (case.raw[at : at + 1] for at in range(len(case.raw))) if is_split else (case.raw,):
                client.writer.write(piece)
                await asyncio.sleep(0)
        found, stated = await statuses(client, len(case.statuses))
        assert (tuple(found), HIDDEN.encode() in stated) == (case.statuses, False)
        if case.closes:
            assert await client.is_closed()
        else:
            await client.send(post("after"))
            assert b"after" in (await statuses(client, 1))[1]
        await is_not_disturbed(port, "alone")
        assert not rig.pod.questions
