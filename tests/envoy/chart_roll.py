"""Every process of the chart restarted under load as a rolling upgrade does it, with the chart's own words and times.

    python -m tests.envoy.chart_roll [--rounds N]

Two proxies behind a service, two pickers behind a real Envoy, an agent beside each of two pods, and Redis. What
Kubernetes does is done here: a new replica is probed before an old one is told to go, the old one is then taken from
the endpoints a moment later, and is killed after its grace time. Exit status 1 where a client saw a failure, or a
process had to be killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import uvloop

from routing.pod_record import read_record, record_key
from simulator.envoy import bootstrap
from tests.chaos.programs import Program, pause
from tests.chaos.wire import Balancer, Wire, balanced
from tests.envoy.chart import Probe, Workload, settings, workload
from tests.envoy.envoys import Envoy, running
from tests.envoy.pickers import unhurried
from tests.gateway.kv_index.redis_servers import Server, free_ports
from tests.gateway.rolls import Load, a_pod, loaded
from tests.sources import ROOT

PODS = 2

PROPAGATION_S = 2.0
"""From SIGTERM to when the service sends a pod no new connections: kube-proxies learn it about so late."""

REDIS_AWAY_S = 5.0
"""A StatefulSet's pod is ended before its successor is started; its volume moves in between."""

WITHIN_S = 180.0


@dataclass(slots=True)
class Stage:
    """Where all processes are. `hurry` divides the chart's times."""

    folder: Path
    session: aiohttp.ClientSession
    redis: Server
    ports: Iterator[int]
    hurry: float
    faults: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)

    async def end(self, program: Program, grace_s: float) -> None:
        """SIGTERM, and SIGKILL when the grace time is over."""
        process = program.running
        assert process is not None
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                status = await process.wait()
        except TimeoutError:
            self.faults.append(f"{program.name} was killed after {grace_s:g} s")
            await program.kill()
        else:
            if status not in (0, 143):
                self.faults.append(f"{program.name} ended with {status}")
        self.restarted.append(program.name)


class Deployment:
    """Replicas of `hearth serve`, the newest last. `admit` and `dismiss` are what stands before them."""

    def __init__(self, stage: Stage, name: str, file: str, seats: Sequence[tuple[int, int]]) -> None:
        self.stage, self.name = stage, name
        self.workload: Workload = workload(file, "Deployment", "hearth")
        self._settings = settings(file)
        self._free = list(seats)
        self.replicas: list[tuple[Program, tuple[int, int]]] = []
        self._count = 0

    async def start_one(self) -> Program:
        """Start a replica on the seat that is free, and wait until it is ready."""
        seat = self._free.pop(0)
        self._count += 1
        program = self._program(seat)
        await program.start()
        self.replicas.append((program, seat))
        await self._probed(program, seat)
        return program

    def _program(self, seat: tuple[int, int]) -> Program:
        """A replica: the chart's arguments and settings, on addresses of this machine."""
        name, (at, metrics) = f"{self.name}-{self._count}", seat
        chosen = {**self._settings, "metrics_listen": f"127.0.0.1:{metrics}", "admin_listen": "127.0.0.1:0"}
        chosen["discovery"] = {"agent_registry": True}
        if "extproc" in chosen:
            chosen |= {"extproc": {**chosen["extproc"], "listen": f"127.0.0.1:{at}"}, "listen": "127.0.0.1:0"}
        else:
            chosen["listen"] = f"127.0.0.1:{at}"
        # The policy has the keys of tenants, which are not what is restarted here.
        chosen.pop("policy", None)
        chosen["timeouts"] = {
            key: value / self.stage.hurry if key == "lame_duck_s" else value
            for key, value in self._settings["timeouts"].items()
        }
        config = self.stage.folder / f"{name}.json"
        config.write_text(json.dumps(chosen), encoding="utf-8")
        words = [str(config) if word == "/etc/hearth/hearth.yaml" else word for word in self.workload.arguments]
        url = f"http://127.0.0.1:{metrics}"
        log = self.stage.folder / f"{name}.log"
        return Program(
            name, ("gateway", *words, "--redis", self.stage.redis.url), f"http://127.0.0.1:{at}", f"{url}/ready", log
        )

    async def _probed(self, program: Program, seat: tuple[int, int]) -> None:
        """The startup probe, then readiness."""
        deadline_s = time.monotonic() + WITHIN_S
        for when in ("startup", "readiness"):
            while not await _answers(self.stage.session, self.workload.probes[when], seat[1]):
                if not program.is_up or time.monotonic() > deadline_s:
                    raise AssertionError(f"{program.name} did not become ready: see {program.log}")
                await pause(self.workload.probes[when].period_s / self.stage.hurry)

    async def roll(self) -> None:
        """Each replica replaced, as the strategy says: a new one is ready before an old one goes."""
        assert self.workload.surge == 1, "the chart's strategy is another: play it"
        assert self.workload.unavailable == 0
        for _ in range(self.workload.replicas):
            old, seat = self.replicas[0]
            await self.admit(await self.start_one())
            self.replicas.pop(0)
            async with asyncio.TaskGroup() as group:
                group.create_task(self.stage.end(old, self.workload.grace_s))
                group.create_task(self.dismiss(old))
            self._free.append(seat)

    async def admit(self, new: Program) -> None:
        """Send requests to a replica."""

    async def dismiss(self, old: Program) -> None:
        """Send a replica no requests any more."""

    async def close(self) -> None:
        """End all that run."""
        for program, _ in self.replicas:
            await program.kill()


async def _answers(session: aiohttp.ClientSession, probe: Probe, port: int) -> bool:
    try:
        timeout = aiohttp.ClientTimeout(total=max(probe.timeout_s, 5.0))
        async with session.get(f"http://127.0.0.1:{port}{probe.path}", timeout=timeout) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


class Proxies(Deployment):
    """Behind a service: connections are balanced among its endpoints, and stay where they are."""

    balancer: Balancer

    async def admit(self, new: Program) -> None:
        self.balancer.wires = [*self.balancer.wires, Wire(new.url)]
        self._ends.append(new.name)

    async def dismiss(self, old: Program) -> None:
        await pause(PROPAGATION_S / self.stage.hurry)
        place = self._ends.index(old.name)
        self._ends.pop(place)
        gone = self.balancer.wires[place]
        self._gone.append(gone)
        self.balancer.wires = [wire for wire in self.balancer.wires if wire is not gone]

    def before(self, balancer: Balancer) -> None:
        """Take the place of the service."""
        self.balancer = balancer
        self._ends: list[str] = []
        self._gone: list[Wire] = []


class Pickers(Deployment):
    """Behind Envoy, which probes each of them by itself."""

    envoy: Envoy

    async def admit(self, new: Program) -> None:
        await self._until_seen(new, healthy=True)

    async def dismiss(self, old: Program) -> None:
        await self._until_seen(old, healthy=False)

    async def _until_seen(self, program: Program, *, healthy: bool) -> None:
        async with asyncio.timeout(WITHIN_S):
            while await self._is_healthy(int(program.url.rpartition(":")[2])) != healthy:
                await pause(0.1)

    async def _is_healthy(self, port: int) -> bool:
        async with self.stage.session.get(f"{self.envoy.admin}/clusters?format=json") as reported:
            clusters = (await reported.json(content_type=None))["cluster_statuses"]
        (hosts,) = [one["host_statuses"] for one in clusters if one["name"] == "hearth"]
        (host,) = [one for one in hosts if one["address"]["socket_address"]["port_value"] == port]
        return not host["health_status"].get("failed_active_health_check")


class Agents:
    """One on each node, beside its pod."""

    def __init__(self, stage: Stage, pods: Sequence[int]) -> None:
        self.stage = stage
        self.workload: Workload = workload("agent", "DaemonSet", "hearth-agent")
        self.programs = [self._program(f"node{number}", port) for number, port in enumerate(pods)]

    def _program(self, name: str, pod: int) -> Program:
        own = ("--redis", self.stage.redis.url, "--name", name, "--address", "127.0.0.1", "--ports", str(pod))
        words = ("gateway", *self.workload.arguments)
        log = self.stage.folder / f"agent-{name}.log"
        return Program(name, (*words, *own, "--load-listen", "off"), "", "", log)

    async def start(self) -> None:
        for program in self.programs:
            await program.start()
        for program in self.programs:
            await self._registered(program, before=None)

    async def roll(self) -> None:
        """One node after the other: the old agent ends, then the new one is started."""
        assert self.workload.unavailable == 1
        for program in self.programs:
            before = await self._life(program)
            await self.stage.end(program, self.workload.grace_s)
            await program.start()
            await self._registered(program, before=before)

    async def _registered(self, program: Program, before: str | None) -> None:
        """Wait until this life's record is in Redis, which may be away just now."""
        async with asyncio.timeout(WITHIN_S):
            while await self._life(program) in (None, before):
                assert program.is_up, f"{program.name} ended: see {program.log}"
                await pause(0.1)

    async def _life(self, program: Program) -> str | None:
        try:
            written = await self.stage.redis.log_event("GET", record_key("", program.name))
        except Exception:  # noqa: BLE001 - it is being restarted
            return None
        record = read_record(written) if isinstance(written, bytes) else None
        return str(record.life) if record is not None else None

    async def close(self) -> None:
        for program in self.programs:
            await program.kill()


async def restart_redis(stage: Stage) -> None:
    """As a StatefulSet of one is updated: away for a moment, then back with what its volume has."""
    process = stage.redis.running
    assert process is not None
    process.send_signal(signal.SIGTERM)
    await process.wait()
    await pause(REDIS_AWAY_S / stage.hurry)
    await stage.redis.start()
    stage.restarted.append("redis")


def redis_options() -> tuple[str, ...]:
    """The chart's, without the folder and the snapshots that the server's own words set here."""
    words = workload("agent", "StatefulSet", "hearth-redis").arguments
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(word for pair in pairs if pair[0] not in ("--dir", "--save") for word in pair)


@dataclass(slots=True)
class Chart:
    """All that the chart runs, with load on both ways in."""

    stage: Stage
    proxies: Proxies
    pickers: Pickers
    agents: Agents
    loads: tuple[Load, Load]

    async def roll_in_turn(self) -> None:
        """In the order in which Helm applies kinds."""
        for part in (self.agents.roll, self.proxies.roll, self.pickers.roll):
            await part()
            await self.goes_on()
        await restart_redis(self.stage)
        await self.goes_on()

    async def roll_at_once(self) -> None:
        """As controllers do it: each kind has one of its own."""
        async with asyncio.TaskGroup() as group:
            for part in (self.agents.roll, self.proxies.roll, self.pickers.roll):
                group.create_task(part())
            group.create_task(restart_redis(self.stage))
        await self.goes_on()

    async def goes_on(self) -> None:
        """Wait until clients of both have been served some more."""
        for load in self.loads:
            await load.goes_on()

    def faults(self) -> list[str]:
        """All that went wrong up to now."""
        failed = [f"a client saw {failure}" for load in self.loads for failure in load.failures]
        return [*self.stage.faults, *failed, *self._missed()]

    def _missed(self) -> list[str]:
        """Gateways that removed a pod, which was there all the time."""
        logs = [log for name in ("proxy", "picker") for log in self.stage.folder.glob(f"{name}-*.log")]
        return [f"{log.stem} removed a pod" for log in logs if '"event":"pod_removed"' in log.read_text("utf-8")]


@asynccontextmanager
async def a_chart(folder: Path, hurry: float = 1.0) -> AsyncIterator[Chart]:
    """Everything started and ready, under load. `hurry` divides the chart's lame duck and probe periods."""
    ports = iter(free_ports(1 + PODS + 12))
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        redis = Server(folder / "redis", next(ports), redis_options(), life_s=3600)
        stack.push_async_callback(redis.kill)
        await redis.start()
        stage = Stage(folder, session, redis, ports, hurry)
        pods = [next(ports) for _ in range(PODS)]
        for port in pods:
            await stack.enter_async_context(a_pod(port, folder))
        urls = [f"http://127.0.0.1:{port}" for port in pods]
        agents = Agents(stage, pods)
        stack.push_async_callback(agents.close)
        await agents.start()
        seats = [(next(ports), next(ports)) for _ in range(6)]
        proxies, pickers = Proxies(stage, "proxy", "agent", seats[:3]), Pickers(stage, "picker", "picker", seats[3:])
        for part in (proxies, pickers):
            stack.push_async_callback(part.close)
        proxies.before(await stack.enter_async_context(balanced()))
        for _ in range(2):
            await proxies.admit(await proxies.start_one())
            await pickers.start_one()
        places = [f"127.0.0.1:{at}" for at, _ in seats[3:]]
        words: dict[str, Any] = unhurried(bootstrap(ROOT / "deploy" / "envoy" / "gie.yaml", places, urls))
        pickers.envoy = await stack.enter_async_context(running(words))
        for program, _ in pickers.replicas:
            await pickers.admit(program)
        direct = await stack.enter_async_context(loaded(proxies.balancer.url, retries=0))
        picked = await stack.enter_async_context(loaded(pickers.envoy.url, retries=0))
        yield Chart(stage, proxies, pickers, agents, (direct, picked))


async def play(rounds: int, folder: Path) -> list[str]:
    """Roll everything so often, in turn and at once. Return what went wrong."""
    async with a_chart(folder) as chart:
        for number in range(rounds):
            began_s = time.monotonic()
            await (chart.roll_at_once() if number % 2 else chart.roll_in_turn())
            how, served = "at once" if number % 2 else "in turn", [load.served for load in chart.loads]
            print(f"round {number + 1}, {how}: {time.monotonic() - began_s:.0f} s, served {served}", flush=True)
    restarts = len(chart.stage.restarted)
    print(f"{restarts} restarts, {sum(load.served for load in chart.loads)} requests, {len(chart.faults())} faults")
    return chart.faults()


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.envoy.chart_roll")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is restarted (default %(default)s)")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="hearth-roll-") as folder:
        faults = uvloop.run(play(options.rounds, Path(folder)))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
