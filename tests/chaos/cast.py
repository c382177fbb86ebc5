"""Who takes part in a run: simulated pods, gateways, Redis, and wires between them.

Knows how each is set up; not what is done to them when, nor what clients see of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import aiohttp

from tests.chaos import crowd
from tests.chaos.dialects import MODEL
from tests.chaos.programs import LIFE_S, Program
from tests.chaos.requested import Tenant
from tests.chaos.wire import Balancer, Wire, balanced, wired
from tests.gateway.kv_index.redis_servers import Server, free_ports
from tests.sources import ROOT

POLICY = f"""\
defaults: {{models: [tiny]}}
{crowd.POLICY}tenants:
  wide: {{}}
  narrow: {{rpm: 2400, output_tpm: 240000, max_parallel_requests: 6}}
{crowd.TENANT}"""
"""So wide per minute that nobody may ever be refused for these, and so narrow at a time that some are."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A replica, and where it tells how it is."""

    program: Program
    admin: str
    metrics: str

    @property
    def name(self) -> str:
        return self.program.name


@dataclass(frozen=True, slots=True)
class Cast:
    """All who take part. `pod_wires` stand before the pods in their order."""

    pods: list[Program]
    pod_wires: list[Wire]
    gateways: list[Gateway]
    redis: list[Server]
    """The one in use and one to fail over to, whichever it is now."""
    redis_wire: Wire
    undisturbed: Program
    """A pod like the others that no gateway knows: what it says is what should have been said."""
    front: Balancer
    """Before the gateways, with a wire to each in their order."""
    session: aiohttp.ClientSession


def key_of(tenant: Tenant) -> str:
    """What its clients show. It opens nothing but a run's own gateways."""
    return f"key-of-{tenant}"


THINKS = ("--max-reasoning-tokens", "40", "--calls-tools")
"""Words for pods whose answers have more than text."""


def a_pod(name: str, folder: Path, port: int, *more: str) -> Program:
    usual = ("simulator.pod", "--listen", f"127.0.0.1:{port}", "--model", MODEL, "--step-base-s", "0.02", "--accents")
    words = (*usual, *more)
    url = f"http://127.0.0.1:{port}"
    return Program(name, words, url, f"{url}/health", folder / f"{name}.log")


def a_gateway(name: str, folder: Path, ports: Iterator[int], wires: Sequence[Wire], redis: Wire) -> Gateway:
    traffic, admin, metrics = (f"127.0.0.1:{next(ports)}" for _ in range(3))
    flags = {
        "--listen": traffic,
        "--admin-listen": admin,
        "--metrics-listen": metrics,
        "--policy": str(folder / "policy.yaml"),
    }
    flags["--redis"] = redis.url.replace("http", "redis")
    flags["--config"] = str(folder / "hearth.yaml")
    flags["--usage-log"] = str(folder / f"{name}.usage.jsonl")
    named = tuple(word for wire in wires for word in ("--pod", wire.url))
    words = ("gateway", "serve", *(word for flag in flags.items() for word in flag), *named)
    url = f"http://{traffic}"
    program = Program(name, words, url, f"{url}/ready", folder / f"{name}.log")
    return Gateway(program, f"http://{admin}", f"http://{metrics}/metrics")


def write_policy(folder: Path) -> None:
    shown: dict[str, str] = {**{tenant: key_of(tenant) for tenant in Tenant}, crowd.CROWD: crowd.KEY}
    keys = "".join(f"    {tenant}: [{sha256(key.encode()).hexdigest()}]\n" for tenant, key in shown.items())
    (folder / "policy.yaml").write_text(f"auth:\n  keys:\n{keys}{POLICY}", encoding="utf-8")


@asynccontextmanager
async def on_stage(
    folder: Path,
    *,
    pods: int = 3,
    gateways: int = 3,
    thinks: bool = False,
    settings: str = "{}",
    gateways_from: Path = ROOT,
) -> AsyncIterator[Cast]:
    """Everybody started and ready; ended when the block ends. `thinks`: the pods think, and call tools. `settings`: the
    configuration file of all gateways. `gateways_from`: the checkout that these are started from.
    """
    more = THINKS if thinks else ()
    write_policy(folder)
    (folder / "hearth.yaml").write_text(settings, encoding="utf-8")
    ports = iter(free_ports(2 + pods + 1 + 3 * gateways))
    async with AsyncExitStack() as stack:
        # A connection that was kept might be closed by a pod in the moment in which it is told what to suffer.
        once = aiohttp.TCPConnector(force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=once))
        redis = [Server(folder / f"redis{number}", next(ports), life_s=LIFE_S) for number in range(2)]
        for server in redis:
            stack.push_async_callback(server.kill)
            await server.start()
        redis_wire = await stack.enter_async_context(wired(redis[0].url))
        fleet = [a_pod(f"pod{number}", folder, next(ports), *more) for number in range(pods)]
        wires = [await stack.enter_async_context(wired(pod.url)) for pod in fleet]
        undisturbed = a_pod("undisturbed", folder, next(ports), *more)
        replicas = [a_gateway(f"gateway{number}", folder, ports, wires, redis_wire) for number in range(gateways)]
        for program in (undisturbed, *fleet):
            await _join(stack, program)
        for program in (undisturbed, *fleet):
            await program.ready(session)
        for gateway in replicas:
            gateway.program.root = gateways_from
            await _join(stack, gateway.program)
        for gateway in replicas:
            await gateway.program.ready(session)
        front = await stack.enter_async_context(balanced(*(gateway.program.url for gateway in replicas)))
        yield Cast(fleet, wires, replicas, redis, redis_wire, undisturbed, front, session)


async def _join(stack: AsyncExitStack, program: Program) -> None:
    stack.push_async_callback(program.stop)
    await program.start()
