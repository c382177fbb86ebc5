"""A crowd of clients that fills a gateway's queue and hangs up all at once. Reads no answer but the last."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.dialects import MODEL
from tests.chaos.programs import pause

CROWD = "crowd"
"""The tenant: its tier promises a first token, so what cannot begin at once waits in the gateway."""

KEY = "key-of-crowd"

POLICY = """\
tiers:
  prompt: {ttft_s: 60, guaranteed_share: 0.2, max_queue_s: 60}
"""

TENANT = "  crowd: {tier: prompt}\n"

SIZE = 300
ROUNDS = 4
WAITS_S = 0.4
"""Before all of them hang up: some run by then, and the others wait."""

SERVED_S = 20.0
"""So long after the last of them a request of the same tenant is served at the latest."""

WORDS = "crowd " * 1_500


def _body(number: int, words: str) -> bytes:
    requested = {"model": MODEL, "prompt": f"{number} {words}", "max_tokens": 40, "stream": True}
    return json.dumps(requested).encode()


def _request(number: int, words: str) -> bytes:
    body = _body(number, words)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


async def hang_up_together(url: str) -> None:
    """Rounds of a crowd: each asks, waits a moment, and closes all its connections in one tick."""
    parts = urlsplit(url)
    for number in range(ROUNDS):
        writers = []
        with suppress(OSError):  # The gateway may be lost meanwhile to another deed.
            for each in range(SIZE):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writers.append(writer)
                writer.write(_request(1_000 * number + each, WORDS))
        await pause(WAITS_S)
        for writer in writers:
            writer.transport.abort()


async def is_served(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a request of the crowd's tenant is answered before long."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with suppress(TimeoutError):
        async with asyncio.timeout(SERVED_S):
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.post(f"{url}/v1/completions", data=_body(0, "one"), headers=headers) as answer:
                        await answer.read()
                        if answer.status == 200:
                            return True
                await pause(0.5)
    return False
