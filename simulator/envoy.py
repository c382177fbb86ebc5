"""A real Envoy in front of pods, configured by one of the files in deploy/envoy with the addresses of this occasion.

Listens on the loopback address, on ports that the system chooses. Independent of the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from simulator.children import ChildFailed, end

READY_S = 60.0
ASK_AGAIN_S = 0.05
LOOPBACK = "127.0.0.1"

Bootstrap = dict[str, Any]
"""An Envoy's configuration, as its file has it."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """Host and port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """`HOST:PORT`, or a URL of it."""
        host, _, port = text.removeprefix("http://").rpartition(":")
        return cls(host.strip("[]"), int(port))

    @property
    def address(self) -> Bootstrap:
        return {"socket_address": {"address": self.host, "port_value": self.port}}


@dataclass(frozen=True, slots=True)
class Envoy:
    """A running one: its URLs for clients and for operators, and its process."""

    url: str
    admin_url: str
    pid: int


def bootstrap(file: Path, pickers: Sequence[str], pods: Sequence[str] = ()) -> Bootstrap:
    """The file with pickers (`HOST:PORT`) and pods (URLs) in the place of its own, and any free ports to listen on.

    Where the file leaves all pods to the picker, `pods` are not needed.
    """
    found: Bootstrap = yaml.safe_load(file.read_text(encoding="utf-8"))
    anywhere = HostPort(LOOPBACK, 0).address
    found["admin"]["address"] = anywhere
    for listener in found["static_resources"]["listeners"]:
        listener["address"] = anywhere
    places = {"hearth": pickers, "pods": pods}
    for cluster in found["static_resources"]["clusters"]:
        if "load_assignment" in cluster:
            ends = [{"endpoint": {"address": HostPort.parse(place).address}} for place in places[cluster["name"]]]
            cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": ends}]
    return found


@asynccontextmanager
async def envoy_running(binary: Path, config: Bootstrap, folder: Path, *, threads: int = 1) -> AsyncIterator[Envoy]:
    """An Envoy that takes requests and knows its pickers as well; logs into `folder`. Raises `ChildFailed`."""
    written, admin_file, log = _laid_out(config, folder)
    text = ("-c", str(written), "--admin-address-path", str(admin_file), "--concurrency", str(threads))
    with log.open("wb") as output:
        program = await asyncio.create_subprocess_exec(
            str(binary),
            *text,
            "--disable-hot-restart",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield await _ready(program, admin_file, log)
    finally:
        await end(program)


def _laid_out(config: Bootstrap, folder: Path) -> tuple[Path, Path, Path]:
    """The files of one Envoy: its configuration, where it will say its admin port, its log."""
    folder.mkdir(parents=True, exist_ok=True)
    written, admin_file, log = folder / "envoy.yaml", folder / "envoy.admin", folder / "envoy.log"
    written.write_text(yaml.safe_dump(config), encoding="utf-8")
    admin_file.unlink(missing_ok=True)
    return written, admin_file, log


def _log_of(admin_file: Path) -> str:
    """Return the content of a file that may not have been written yet."""
    return admin_file.read_text(encoding="utf-8").strip() if admin_file.exists() else ""


async def _ready(program: asyncio.subprocess.Process, admin_file: Path, log: Path) -> Envoy:
    try:
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as client:
            while not (admin := _log_of(admin_file)):
                _insist(program, log)
                await asyncio.sleep(ASK_AGAIN_S)
            while not (url := await _listener(client, f"http://{admin}")):
                _insist(program, log)
                await asyncio.sleep(ASK_AGAIN_S)
    except TimeoutError:
        raise ChildFailed(f"Envoy was not ready within {READY_S:.0f} s: see {log}") from None
    return Envoy(url, f"http://{admin}", program.pid)


def _insist(program: asyncio.subprocess.Process, log: Path) -> None:
    if program.returncode is not None:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise ChildFailed(f"Envoy ended before it was ready: {lines[-1] if lines else 'without a word'}")


async def _listener(client: aiohttp.ClientSession, admin_url: str) -> str:
    """Where clients come in, empty until Envoy lives and all that it checks has been found healthy."""
    try:
        async with client.get(f"{admin_url}/ready") as answer:
            if answer.status != 200:
                return ""
        async with client.get(f"{admin_url}/clusters?format=json") as answer:
            if not _all_healthy(msgspec.json.decode(await answer.read())):
                return ""
        async with client.get(f"{admin_url}/listeners?format=json") as answer:
            (listener,) = msgspec.json.decode(await answer.read())["listener_statuses"]
    except aiohttp.ClientError:
        return ""
    return f"http://{LOOPBACK}:{listener['local_address']['socket_address']['port_value']}"


def _all_healthy(admin_file: Bootstrap) -> bool:
    """Hosts that have failed their active check, or not had it yet, say so; those without a check say nothing."""
    hosts = [host for cluster in admin_file["cluster_statuses"] for host in cluster.get("host_statuses", ())]
    return not any(host["health_status"].get("failed_active_health_check") for host in hosts)
