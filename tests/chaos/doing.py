"""Does the deeds to the cast, each at its time, and undoes it. Remembers when a gateway could not be relied on."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.chaos.cast import Cast
from tests.chaos.crowd import hang_up_together, is_served
from tests.chaos.deeds import Deed, Kind, Whom
from tests.chaos.findings import Done
from tests.chaos.programs import Program, pause
from tests.chaos.wire import Wire

TOKENS_BEFORE_ABORT = 12

FAULTS: dict[Kind, dict[str, object]] = {
    Kind.SLOW_POD: {"kind": "slow", "factor": 8.0},
    Kind.HANG_POD: {"kind": "hang"},
    Kind.CUT_POD: {"kind": "cut", "after_chunks": 7},
    Kind.SEVER_POD: {"kind": "reset", "after_chunks": 5, "spot": "character"},
    Kind.MUTE_POD: {"kind": "mute", "after_chunks": 9},
    Kind.GARBLE_POD: {"kind": "damage", "after_chunks": 9, "spot": "frame"},
    Kind.ABORT_POD: {"kind": "abort", "after_chunks": TOKENS_BEFORE_ABORT - 1},
    Kind.DROP_POD: {"kind": "drop"},
    Kind.BREAK_POD: {"kind": "error"},
    Kind.REFUSE_POD: {"kind": "refuse"},
}
"""What a simulated pod is told to suffer from, and to be well again afterwards."""

LASTING_FAULTS: dict[Kind, dict[str, object]] = {
    Kind.CRASH_POD: {"kind": "crash"},
    Kind.FREEZE_POD: {"kind": "freeze"},
}
"""As in vLLM, only a restart mends these."""

LAG_S = 0.05

HARMLESS = (Kind.LAG_GATEWAY, Kind.CROWD_GATEWAY)
"""To all who are connected to the gateway meanwhile."""

Say = Callable[[str], None]
Do = Callable[[Deed], Awaitable[None]]


class Doing:
    """One run's deeds."""

    def __init__(self, cast: Cast, log_event: Say) -> None:
        self._cast = cast
        self._say = log_event
        self.faults: list[str] = []
        """What a program did that it must not: not end when told to."""
        self.lost: list[tuple[float, float]] = []
        """From when until when a gateway was not there, by the loop's clock."""
        self.done: list[Done] = []
        self._suffering: Counter[str] = Counter()
        self._of: dict[Kind, Do] = {
            **dict.fromkeys(FAULTS, self._fault),
            **dict.fromkeys(LASTING_FAULTS, self._lasting_fault),
            **dict.fromkeys((Kind.KILL_POD, Kind.KILL_GATEWAY), self._kill),
            **dict.fromkeys((Kind.STOP_POD, Kind.STOP_GATEWAY), self._stop),
            **dict.fromkeys((Kind.PAUSE_POD, Kind.PAUSE_GATEWAY), self._pause),
            **dict.fromkeys((Kind.RESET_POD, Kind.RESET_GATEWAY, Kind.RESET_REDIS), self._reset),
            **dict.fromkeys((Kind.SILENCE_POD, Kind.SILENCE_GATEWAY, Kind.SILENCE_REDIS), self._silence),
            **dict.fromkeys((Kind.LAG_POD, Kind.LAG_GATEWAY, Kind.LAG_REDIS), self._lag),
            Kind.DAMAGE_POD: self._damage,
            Kind.IDLE_GATEWAY: self._close_idle,
            Kind.CROWD_GATEWAY: self._hang_up,
            Kind.KILL_REDIS: self._kill_redis,
            Kind.PAUSE_REDIS: self._pause_redis,
            Kind.FLUSH_REDIS: self._flush_redis,
            Kind.REPLACE_REDIS: self._replace_redis,
        }

    @property
    def suffering(self) -> set[str]:
        """Names of programs to which something is being done; some take longer than their deed was to last."""
        return {name for name, deeds in self._suffering.items() if deeds}

    @contextmanager
    def to(self, name: str) -> Iterator[None]:
        """While something is done to this program."""
        self._suffering[name] += 1
        try:
            yield
        finally:
            self._suffering[name] -= 1

    async def all(self, deeds: Sequence[Deed]) -> None:
        """Each at its time, but for those that come too early; returns when the last is undone."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with asyncio.TaskGroup() as group:
            for deed in deeds:
                await pause(max(0.0, began_s + deed.at_s - clock()))
                if self._is_too_early(deed):
                    self._say(f"{deed.at_s:6.1f} s  {deed.kind} {deed.who}: left out, others are not back yet")
                else:
                    group.create_task(self.do(deed))

    def _is_too_early(self, deed: Deed) -> bool:
        """Whether the program, or all the others of its kind, still suffer: on a busy machine, longer than planned."""
        whom, cast = deed.kind.whom, self._cast
        crowd = {Whom.POD: len(cast.pods), Whom.GATEWAY: len(cast.gateways), Whom.REDIS: 2}[whom]
        suffering = {name for name in self.suffering if name.startswith(whom)}
        return f"{whom}{deed.who}" in suffering or len(suffering) + 1 >= crowd

    async def do(self, deed: Deed) -> None:
        """One, from its beginning to its end."""
        clock, name = asyncio.get_running_loop().time, f"{deed.kind.whom}{deed.who}"
        self._say(f"{deed.at_s:6.1f} s  {deed.kind} {deed.who} for {deed.lasts_s:.1f} s")
        began_s = clock()
        try:
            with self.to(name):
                await self._of[deed.kind](deed)
        finally:
            self.done.append(Done(name, deed.kind, deed.who, began_s, clock()))
            if deed.kind.whom is Whom.GATEWAY and deed.kind not in HARMLESS:
                self.lost.append((began_s, clock()))

    def _program(self, deed: Deed) -> Program:
        if deed.kind.whom is Whom.GATEWAY:
            return self._cast.gateways[deed.who].program
        return self._cast.pods[deed.who]

    def _wire(self, deed: Deed) -> Wire:
        if deed.kind.whom is Whom.REDIS:
            return self._cast.redis_wire
        return (self._cast.front.wires if deed.kind.whom is Whom.GATEWAY else self._cast.pod_wires)[deed.who]

    async def _fault(self, deed: Deed) -> None:
        pod = self._program(deed)
        await self._order(pod, FAULTS[deed.kind])
        await pause(deed.lasts_s)
        await self._order(pod, {"kind": "none"})

    async def _lasting_fault(self, deed: Deed) -> None:
        pod = self._program(deed)
        await self._order(pod, LASTING_FAULTS[deed.kind])
        await pause(deed.lasts_s)
        await pod.kill()
        await self._back(pod)

    async def _order(self, pod: Program, fault: dict[str, object]) -> None:
        await pod.ready(self._cast.session)  # It may have been started a moment ago, on a busy machine.
        async with self._cast.session.post(f"{pod.url}/faults", json=fault) as answer:
            assert answer.status == 200, await answer.text()

    async def _kill(self, deed: Deed) -> None:
        program = self._program(deed)
        await program.kill()
        await pause(deed.lasts_s)
        await self._back(program)

    async def _stop(self, deed: Deed) -> None:
        program = self._program(deed)
        if not await program.stop():
            self.faults.append(f"{program.name} did not end in order when told to")
        await pause(deed.lasts_s)
        await self._back(program)

    async def _back(self, program: Program) -> None:
        await program.start()
        await program.ready(self._cast.session)

    async def _pause(self, deed: Deed) -> None:
        program = self._program(deed)
        program.signal(signal.SIGSTOP)
        await pause(deed.lasts_s)
        program.signal(signal.SIGCONT)

    async def _reset(self, deed: Deed) -> None:
        self._wire(deed).reset()

    async def _close_idle(self, deed: Deed) -> None:
        self._wire(deed).close_idle()

    async def _hang_up(self, deed: Deed) -> None:
        """Many clients of one tenant fill the queue and leave together; then the tenant is served as before."""
        gateway = self._program(deed)
        await hang_up_together(gateway.url)
        if not await is_served(self._cast.session, gateway.url):
            self.faults.append(f"{gateway.name} served nobody of a tenant whose clients had hung up together")

    async def _silence(self, deed: Deed) -> None:
        wire = self._wire(deed)
        wire.fall_silent()
        await pause(deed.lasts_s)
        wire.reset()  # Held-back bytes of a network that was half open do not come a minute later.
        wire.speak()

    async def _lag(self, deed: Deed) -> None:
        wire = self._wire(deed)
        wire.lag_s = LAG_S
        await pause(deed.lasts_s)
        wire.lag_s = 0.0

    async def _damage(self, deed: Deed) -> None:
        wire = self._wire(deed)
        wire.damages = True
        await pause(deed.lasts_s)
        wire.damages = False

    async def _kill_redis(self, deed: Deed) -> None:
        server = self._cast.redis[0]
        await server.kill()
        await pause(deed.lasts_s)
        await server.start()

    async def _pause_redis(self, deed: Deed) -> None:
        server = self._cast.redis[0]
        await server.hang()
        await pause(deed.lasts_s)
        await server.wake()

    async def _flush_redis(self, _: Deed) -> None:
        await self._cast.redis[0].log_event("FLUSHALL")

    async def _replace_redis(self, _: Deed) -> None:
        """Another server at the same address, with nothing of what the first one held."""
        servers, wire = self._cast.redis, self._cast.redis_wire
        servers.reverse()
        await servers[0].log_event("FLUSHALL")
        wire.lead_to(servers[0].url)
        wire.reset()
