"""Who asks us again and again how we are, and whether they have acted on it that we go.

Envoy that finds our port closed asks another picker, but not with a body of which it has written more than 64 KB
already: it keeps no more of it, and in full duplex it does not wait before it writes. So the port closes after Envoy's
health check has heard a no, not before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

NOES = 2
"""Who asks again after a no has acted on the first one: one check follows the other."""


class Checkers:
    """One per gateway process: the connections on which our readiness was asked for."""

    def __init__(self) -> None:
        self._noes: dict[object, int] = {}
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Checkers on {len(self._noes)} connections>"

    def tell(self, connection: object, *, is_ready: bool) -> None:
        """What was said on it just now."""
        self._noes[connection] = 0 if is_ready else self._noes.get(connection, 0) + 1
        self._stirred.set()

    def forget(self, connection: object) -> None:
        """It is over."""
        self._noes.pop(connection, None)
        self._stirred.set()

    async def wait_until_known(self, limit_s: float) -> None:
        """Until all who are there now know that we are not ready, or so long. Who comes later hears of nothing else."""
        asked = tuple(self._noes)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while any(self._noes.get(one, NOES) < NOES for one in asked):
                    self._stirred.clear()
                    await self._stirred.wait()
