"""Raw connections for cases, and for those who must not notice anything of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.gateway.http.rig import RawClient
from tests.smuggling.cases import HIDDEN, UNKNOWN, post

PATIENCE_S = 60.0
STATUS_LINE = re.compile(rb"(?m)^HTTP/1\.1 (\d{3})")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawClient]:
    """A connection to whoever is in front; gone at the end."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
    try:
        yield client
    finally:
        client.leave()


async def is_not_disturbed(port: int, name: str) -> None:
    """Somebody else asks on a connection of his own, twice, and gets his own answers."""
    async with connected(port) as client:
        for turn in range(2):
            model = f"{name}-{turn}"
            await client.send(post(model))
            answer = await client.answer()
            assert answer.status == UNKNOWN, (name, answer)
            assert model in answer.json()["error"]["message"], (name, answer)
            assert HIDDEN not in answer.json()["error"]["message"]


async def told_so_far(client: RawClient) -> bytes:
    """What has come on a connection by now; nothing more is waited for."""
    reported = b""
    with suppress(TimeoutError, ConnectionError):
        while piece := await asyncio.wait_for(client.reader.read(1 << 16), timeout=0):
            reported += piece
    return reported
