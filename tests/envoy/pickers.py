"""Two pickers behind a real Envoy that is set up by a file of deploy/envoy, and what Envoy makes of each of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from simulator.envoy import Bootstrap, Envoy, bootstrap, envoy_running
from tests.envoy.envoys import binary
from tests.envoy.scene import until
from tests.gateway.kv_index.redis_servers import free_ports
from tests.gateway.rolls import Seat, a_gateway
from tests.sources import ROOT


def unhurried(config: Bootstrap) -> Bootstrap:
    """The same, with patience for a machine on which a living picker may be silent for long."""
    hearth = cluster_of(config)
    hearth["health_checks"][0]["timeout"] = hearth["connect_timeout"] = "60s"
    (options,) = hearth["typed_extension_protocol_options"].values()
    del options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    return config


def cluster_of(config: Bootstrap) -> Bootstrap:
    """The pickers', to be altered."""
    found: list[Bootstrap] = config["static_resources"]["clusters"]
    (hearth,) = [one for one in found if one["name"] == "hearth"]
    return hearth


@dataclass(frozen=True)
class Pickers:
    """By the port on which Envoy finds them."""

    seats: dict[int, Seat]
    envoy: Envoy
    client: aiohttp.ClientSession

    async def until_seen(self, port: int, *, healthy: bool) -> None:
        """Envoy's own check has found the one on this port so."""

        async def is_seen() -> bool:
            return await self._is_healthy(port) == healthy

        await until(is_seen)

    async def _is_healthy(self, port: int) -> bool:
        async with self.client.get(f"{self.envoy.admin_url}/clusters?format=json") as reported:
            clusters = (await reported.json(content_type=None))["cluster_statuses"]
        (hosts,) = [one["host_statuses"] for one in clusters if one["name"] == "hearth"]
        (host,) = [one for one in hosts if one["address"]["socket_address"]["port_value"] == port]
        return not host["health_status"].get("failed_active_health_check")


def _seats(ports: Iterator[int], config: Path, pods: Sequence[str], stack: AsyncExitStack) -> dict[int, Seat]:
    found = {}
    for _ in range(2):
        at, own = next(ports), [next(ports) for _ in range(3)]
        flags = ("--config", str(config), "--extproc-listen", f"127.0.0.1:{at}")
        found[at] = Seat(partial(a_gateway, own, pods, flags), stack)
    return found


@asynccontextmanager
async def two_pickers(
    folder: Path,
    file: str,
    pods: Sequence[str],
    *,
    settings: Mapping[str, Any] | None = None,
    altered: Callable[[Bootstrap], Bootstrap] = unhurried,
) -> AsyncIterator[Pickers]:
    """Both are there, and Envoy has found them well. `settings` are theirs, `altered` is what it makes of the file."""
    async with AsyncExitStack() as stack:
        (config := folder / "hearth.json").write_text(json.dumps(settings or {}))
        seats = _seats(iter(free_ports(8)), config, pods, stack)
        await asyncio.gather(*(seat.fill() for seat in seats.values()))
        places = [f"127.0.0.1:{port}" for port in seats]
        words = altered(bootstrap(ROOT / "deploy" / "envoy" / f"{file}.yaml", places, pods))
        front = await stack.enter_async_context(envoy_running(Path(binary()), words, folder))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)))
        yield Pickers(seats, front, client)
