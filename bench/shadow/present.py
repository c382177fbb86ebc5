"""The gateway that is there before: Envoy with plain round robin, which sends a copy of each request to the shadow."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.children import Child, ChildFailed, running
from simulator.envoy import LOOPBACK, Bootstrap, HostPort, envoy_running
from simulator.stage import make_folder

PREDICTS_WITHIN_S = 900.0

V3 = "type.googleapis.com/envoy.extensions.filters"


@dataclass(slots=True)
class Shadow:
    """`hearth shadow` beside Envoy. `url` is Envoy's."""

    url: str
    child: Child
    out: Path

    async def conclude(self) -> dict[str, Any]:
        """End the recording and return the report. Raises `ChildFailed` without one."""
        self.child.program.send_signal(signal.SIGINT)
        async with asyncio.timeout(PREDICTS_WITHIN_S):
            status = await self.child.program.wait()
        if status != 0:
            raise ChildFailed(f"the shadow ended with {status}: see {self.child.log}")
        report: dict[str, Any] = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        return report


@asynccontextmanager
async def mirrored(binary: Path, pods: Sequence[str], folder: Path) -> AsyncIterator[Shadow]:
    """Envoy in front of pods (URLs), and the shadow that reads their metrics. Raises `ChildFailed`."""
    make_folder(folder)
    flags = ["--listen", "127.0.0.1:0", "--out", str(folder), *(word for pod in pods for word in ("--pod", pod))]
    started = running("simulator.shadow", flags, name="the shadow", log=folder / "shadow.log", greeting=_url_in)
    async with started as (child, url), envoy_running(binary, configuration(pods, url), folder) as envoy:
        yield Shadow(envoy.url, child, folder)


def _url_in(line: bytes) -> str | None:
    return line.decode().strip() if line.startswith(b"http://") else None


def configuration(pods: Sequence[str], shadow: str) -> Bootstrap:
    """Return Envoy's configuration: one listener, any free port."""
    anywhere = HostPort(LOOPBACK, 0).address
    route = {
        "cluster": "pods",
        "timeout": "0s",
        "request_mirror_policies": [{"cluster": "shadow"}],
    }
    host = {"name": "pods", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{V3}.http.router.v3.Router"}}
    connections = {
        "@type": f"{V3}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "stream_idle_timeout": "600s",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [router],
    }
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": connections}
    return {
        "admin": {"address": anywhere},
        "static_resources": {
            "listeners": [{"name": "clients", "address": anywhere, "filter_chains": [{"filters": [manager]}]}],
            "clusters": [_cluster("pods", pods), _cluster("shadow", [shadow])],
        },
    }


def _cluster(name: str, urls: Sequence[str]) -> dict[str, Any]:
    ends = [{"endpoint": {"address": HostPort.parse(url).address}} for url in urls]
    return {
        "name": name,
        "type": "STATIC",
        "lb_policy": "ROUND_ROBIN",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
    }


def envoy_binary() -> Path:
    """Return the Envoy of `make envoy-venv`. Raises `ChildFailed` without one."""
    named = Path(".venv-envoy/binary")
    if not named.exists():
        print("bench-shadow: make envoy-venv", file=sys.stderr)
        raise ChildFailed("no Envoy: run make envoy-venv")
    return Path(named.read_text(encoding="utf-8").strip())
