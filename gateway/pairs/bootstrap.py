"""Asks bootstrap servers of prefill pods for their engines' ids, and remembers the answers for a while.

`GET http://HOST:PORT/query` answers `{"<data-parallel rank>": {"engine_id": ...}}` (Mooncake). A pod that starts again
has another id, so nothing is believed for long, and what failed is asked anew. Requests that want the same ask once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp
import msgspec

TTL_S = 30.0

MAX_KNOWN = 4096

MAX_RESPONSE_BYTES = 1 << 20

ASK_S = 2.0


class _Told(msgspec.Struct):
    engine_id: str


_DECODER = msgspec.json.Decoder(dict[str, _Told])


class BootstrapServers:
    """One per gateway. `session` is for asking pods."""

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self._known: dict[str, tuple[float, Mapping[str, str]]] = {}
        self._asking: dict[str, asyncio.Task[Mapping[str, str]]] = {}

    async def engine_id(self, address: str, rank: int) -> str:
        """The id of an engine whose pod has its bootstrap server there; empty where it cannot be had."""
        known = self._known.get(address)
        if known is None or self._clock() - known[0] > TTL_S:
            return (await self._asked(address)).get(str(rank), "")
        return known[1].get(str(rank), "")

    def forget(self, address: str) -> None:
        """What was told may be of another life of that pod."""
        self._known.pop(address, None)

    async def _asked(self, address: str) -> Mapping[str, str]:
        task = self._asking.get(address)
        if task is None:
            task = self._asking[address] = asyncio.get_running_loop().create_task(self._ask(address))
            task.add_done_callback(lambda _: self._asking.pop(address, None))
        # Who stops waiting must not stop it for the others.
        return await asyncio.shield(task)

    async def _ask(self, address: str) -> Mapping[str, str]:
        try:
            async with (
                asyncio.timeout(ASK_S),
                self._session.get(f"http://{address}/query", allow_redirects=False) as answer,
            ):
                body = await answer.content.read(MAX_RESPONSE_BYTES)
                told = {rank: each.engine_id for rank, each in _DECODER.decode(body).items()} if body else {}
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            return {}
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if told:
            self._known[address] = self._clock(), told
        return told
