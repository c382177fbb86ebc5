"""A real Envoy in front of Hearth, set up as people set it up: one configuration per way of working."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import aiohttp

from tests.sources import ROOT

BUFFER_BYTES = 32 << 20

TYPES = "type.googleapis.com/envoy"
HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}
MANY = {"thresholds": [{"max_connections": 9999, "max_pending_requests": 9999, "max_requests": 9999}]}
METADATA_KEY = {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}


def binary() -> str:
    """The Envoy that `make envoy-venv` has fetched."""
    return (ROOT / ".venv-envoy" / "binary").read_text().strip()


@dataclass(frozen=True)
class Way:
    """How one Envoy works with its picker."""

    request: str = "BUFFERED"
    response: str = "NONE"
    observes: bool = False
    fails_open: bool = False
    logs: bool = True
    """Whether it writes its access log to the picker."""
    pods: tuple[str, ...] | None = None
    """The endpoints of an `override_host` cluster; None: whatever the picker says."""
    retries: bool = False
    subset: str | None = None
    """A header from which the subset hint is read."""
    overrides: bool = True
    """Whether the picker may have answers shown to it."""
    tls: bool = False
    trailers: bool = False
    unasked: bool = False
    checks: bool = False
    """Whether the picker's health is looked at."""
    buffer_bytes: int = BUFFER_BYTES
    more: Mapping[str, Any] = field(default_factory=dict)


BUFFERED_NONE = Way()
BUFFERED_OBSERVED = Way(observes=True)
DUPLEX = Way("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", trailers=True)
DUPLEX_NONE = Way("FULL_DUPLEX_STREAMED", "NONE", trailers=True)
BUFFERED_STREAMED = Way("BUFFERED", "STREAMED")
STREAMED_NONE = Way("STREAMED", "NONE", unasked=True)


def _cluster(name: str, endpoints: Sequence[str], **more: Any) -> dict[str, Any]:
    lb = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, _, port in (endpoint.rpartition(":") for endpoint in endpoints)
    ]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": MANY,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": lb}]},
        **more,
    }


def _pods(way: Way) -> dict[str, Any]:
    if way.pods is None:
        return {
            "name": "pods",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "2s",
            "circuit_breakers": MANY,
            "original_dst_lb_config": {"metadata_key": METADATA_KEY},
        }
    robin = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {"@type": f"{TYPES}.extensions.load_balancing_policies.round_robin.v3.RoundRobin"},
    }
    override = {
        "@type": f"{TYPES}.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": METADATA_KEY}, {"header": "x-gateway-destination-endpoint"}],
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]},
        "fallback_policy": {"policies": [{"typed_extension_config": robin}]},
    }
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
    return _cluster("pods", way.pods, load_balancing_policy={"policies": [{"typed_extension_config": policy}]})


def _filter(name: str, way: Way, *, observes: bool = False) -> dict[str, Any]:
    trailers = "SEND" if way.trailers and not observes else "SKIP"
    config: dict[str, Any] = {
        "@type": f"{TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "failure_mode_allow": way.fails_open,
        "message_timeout": "65s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "NONE" if observes else way.request,
            "request_trailer_mode": trailers,
            "response_header_mode": "SEND",
            "response_body_mode": "STREAMED" if observes else way.response,
            "response_trailer_mode": trailers,
        },
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
        "request_attributes": ["source.address"],
        "response_attributes": ["upstream.address"],
    }
    if observes:
        config["observability_mode"] = True
    else:
        config["allow_mode_override"] = way.overrides
        config["send_body_without_waiting_for_header_response"] = way.unasked
    return {"name": name, "typed_config": config | dict(way.more if not observes else {})}


def _filters(way: Way) -> list[dict[str, Any]]:
    found = []
    if way.subset:
        rule = {
            "header": way.subset,
            "on_header_present": {
                "metadata_namespace": "envoy.lb.subset_hint",
                "key": "x-gateway-destination-endpoint-subset",
                "type": "STRING",
            },
        }
        config = {
            "@type": f"{TYPES}.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [rule],
        }
        found.append({"name": "envoy.filters.http.header_to_metadata", "typed_config": config})
    found.append(_filter("picker", way))
    if way.observes:
        found.append(_filter("observer", way, observes=True))
    router = {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"}
    return [*found, {"name": "envoy.filters.http.router", "typed_config": router}]


def config_of(way: Way, pickers: Sequence[str]) -> dict[str, Any]:
    """The whole configuration of an Envoy whose pickers listen there."""
    route: dict[str, Any] = {"cluster": "pods", "timeout": "0s"}
    if way.retries:
        route["retry_policy"] = {"retry_on": "5xx,connect-failure", "num_retries": 2}
    manager: dict[str, Any] = {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "stream_idle_timeout": "600s",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": _filters(way),
    }
    if way.logs:
        log = {
            "@type": f"{TYPES}.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": "hearth",
                "transport_api_version": "V3",
                "buffer_size_bytes": 0,
                "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            },
        }
        manager["access_log"] = [{"name": "envoy.access_loggers.http_grpc", "typed_config": log}]
    picker: dict[str, Any] = {"typed_extension_protocol_options": HTTP2}
    if way.checks:
        service = "envoy.service.ext_proc.v3.ExternalProcessor"
        times = {"timeout": "60s", "interval": "0.2s", "unhealthy_threshold": 1, "healthy_threshold": 1}
        times |= {"no_traffic_interval": "0.2s"}
        picker["health_checks"] = [times | {"grpc_health_check": {"service_name": service}}]
        picker["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}
    if way.tls:
        tls = {"@type": f"{TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext"}
        picker["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": tls}
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "clients",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    "per_connection_buffer_limit_bytes": way.buffer_bytes,
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [_pods(way), _cluster("picker", pickers, **picker)],
        },
    }


@dataclass
class Envoy:
    """One that runs. `url` is where clients come in."""

    running: asyncio.subprocess.Process
    admin: str
    url: str = ""

    async def stats(self, word: str) -> dict[str, int]:
        """Its counters whose names hold a word."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.admin}/stats?format=json") as answer:
            found = (await answer.json())["stats"]
        return {one["name"]: one["value"] for one in found if word in one.get("name", "")}


def envoy(way: Way, *pickers: str) -> AbstractAsyncContextManager[Envoy]:
    """An Envoy that takes clients, and asks pickers."""
    return running(config_of(way, pickers))


@asynccontextmanager
async def running(configuration: Mapping[str, Any]) -> AsyncIterator[Envoy]:
    """An Envoy of one listener that takes clients."""
    with TemporaryDirectory(prefix="hearth-envoy-") as kept:
        folder = Path(kept)
        config, admin = folder / "envoy.json", folder / "admin"
        config.write_text(json.dumps(configuration))
        log = _open(folder / "log")
        program = await asyncio.create_subprocess_exec(
            binary(),
            *("-c", str(config), "--admin-address-path", str(admin), "--disable-hot-restart"),
            *("--concurrency", "1", "-l", "warning"),
            stdout=log,
            stderr=log,
        )
        try:
            started = Envoy(program, "")
            await _until_it_listens(started, admin, folder / "log")
            yield started
        finally:
            if program.returncode is None:
                program.terminate()
                try:
                    async with asyncio.timeout(30):
                        await program.wait()
                except TimeoutError:
                    program.kill()
                    await program.wait()
            log.close()


async def a_moment() -> None:
    """Until it is worth asking again what other programs tell nobody."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.call_later(0.05, over.set)
    await over.wait()


def _open(path: Path) -> BinaryIO:
    return path.open("wb")


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


async def _until_it_listens(started: Envoy, admin: Path, log: Path) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while True:
            assert started.running.returncode is None, _read(log)[-4000:]
            if at := _read(admin).strip():
                started.admin = f"http://{at}"
                try:
                    async with session.get(f"{started.admin}/listeners?format=json") as answer:
                        found = (await answer.json())["listener_statuses"]
                    async with session.get(f"{started.admin}/ready") as ready:
                        if ready.status == 200 and found:
                            where = found[0]["local_address"]["socket_address"]
                            started.url = f"http://{where['address']}:{where['port_value']}"
                            return
                except aiohttp.ClientError:
                    pass
            await a_moment()
