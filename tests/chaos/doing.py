"""Does the deeds to the cast, each at its time, and undoes it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from tests.chaos.cast import Cast, Program, pause
from tests.chaos.deeds import Deed, Kind

FAULTS: dict[Kind, dict[str, object]] = {
    Kind.SLOW_POD: {"kind": "slow", "factor": 8.0},
    Kind.HANG_POD: {"kind": "hang"},
    Kind.CUT_STREAMS: {"kind": "cut", "after_chunks": 7},
    Kind.DROP_REQUESTS: {"kind": "drop"},
    Kind.BREAK_REQUESTS: {"kind": "error"},
    Kind.REFUSE_REQUESTS: {"kind": "refuse"},
    Kind.CRASH_ENGINE: {"kind": "crash"},
}
"""What a simulated pod is told to suffer from."""

Say = Callable[[str], None]


class Doing:
    """One run's deeds."""

    def __init__(self, cast: Cast, session: aiohttp.ClientSession, say: Say) -> None:
        self._cast = cast
        self._session = session
        self._say = say

    async def all(self, deeds: Sequence[Deed]) -> None:
        """Each at its time; returns when the last is undone."""
        began_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for deed in deeds:
                await pause(max(0.0, began_s + deed.at_s - asyncio.get_running_loop().time()))
                group.create_task(self._do(deed))

    async def _do(self, deed: Deed) -> None:
        self._say(f"{deed.kind} {deed.who} for {deed.lasts_s:.1f} s")
        if deed.kind in FAULTS:
            await self._fault(deed)
        elif deed.kind.befalls_pod:
            await self._trouble(self._cast.pods[deed.who], deed)
        elif deed.kind.befalls_gateway:
            await self._trouble(self._cast.gateways[deed.who], deed)
        else:
            await self._redis(deed)

    async def _fault(self, deed: Deed) -> None:
        pod = self._cast.pods[deed.who]
        await self._order(pod, FAULTS[deed.kind])
        await pause(deed.lasts_s)
        if deed.kind is Kind.CRASH_ENGINE:  # For good, as in vLLM: only a restart mends it.
            await self._restart(pod, pod.kill)
        else:
            await self._order(pod, {"kind": "none"})

    async def _order(self, pod: Program, fault: dict[str, object]) -> None:
        async with self._session.post(f"{pod.url}/faults", json=fault) as answer:
            assert answer.status == 200, await answer.text()

    async def _trouble(self, program: Program, deed: Deed) -> None:
        if deed.kind is Kind.PAUSE_POD:
            program.signal(signal.SIGSTOP)
            await pause(deed.lasts_s)
            program.signal(signal.SIGCONT)
            return
        await (program.stop if deed.kind is Kind.STOP_GATEWAY else program.kill)()
        await pause(deed.lasts_s)
        await self._restart(program)

    async def _restart(self, program: Program, first: Callable[[], Awaitable[None]] | None = None) -> None:
        if first is not None:
            await first()
        await program.start()
        await program.ready(self._session)

    async def _redis(self, deed: Deed) -> None:
        redis = self._cast.redis
        match deed.kind:
            case Kind.FLUSH_REDIS:
                await redis.say("FLUSHALL")
            case Kind.PAUSE_REDIS:
                await redis.say("CLIENT", "PAUSE", int(deed.lasts_s * 1000))
            case _:
                assert redis.running is not None
                redis.running.send_signal(signal.SIGTERM)  # To `timeout`, which passes it on.
                await redis.running.wait()
                await pause(deed.lasts_s)
                await redis.start()
