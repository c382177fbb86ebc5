"""The settings as values. Nothing here reads a file, a flag or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from gateway.config.exact import KvEvents
from gateway.config.extproc import ExtProc
from gateway.config.listening import Address, TlsFiles
from gateway.config.models import ModelEntry
from gateway.config.port_limits import Limits, Timeouts
from gateway.config.secret import Secret
from gateway.discovery.locations import ELSEWHERE, Places
from gateway.discovery.source import Found
from gateway.http.cors import Cors
from routing.canary import CanaryTerms
from routing.candidates import Scorer
from routing.pairing.roles import RoleTerms
from routing.retries import RetryTerms
from routing.stall_detection import Bounds
from scorers.registry import routings


@dataclass(frozen=True, slots=True)
class Routing:
    """The scorers whose seconds are added up, and what the composition is called."""

    name: str = "warm"
    scorers: tuple[Scorer, ...] = field(default_factory=lambda: routings()["warm"])
    most_blocks: int = 1 << 16
    """Per engine, in the index of what was routed where: 64 MB and more of distinct prompt text."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it, defaults included."""

    listen: Address = Address("127.0.0.1", 8000)
    processes: int = 1
    """Workers that share the traffic port: a core's worth of streams each."""
    metrics: Address | None = Address("127.0.0.1", 9090)
    admin: Address | None = Address("127.0.0.1", 9091)
    admin_token: Secret | None = None
    policy: Path | None = None
    redis: Secret | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    pods: tuple[Found, ...] = ()
    pod_file: Path | None = None
    places: Places = ELSEWHERE
    """Where else pods are looked for."""
    pod_api_key: Secret | None = None
    models: tuple[ModelEntry, ...] = ()
    routing: Routing = field(default_factory=Routing)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: RetryTerms = field(default_factory=RetryTerms)
    stalls: Bounds = field(default_factory=Bounds)
    """When an engine has been silent for too long."""
    roles: RoleTerms | None = None
    """Where roles follow the traffic."""
    canaries: tuple[CanaryTerms, ...] = ()
    kv_events: KvEvents | None = None
    """Exact warmth, where it is wanted."""
    extproc: ExtProc | None = None
    """Envoy may send us requests to place."""
    tls: TlsFiles | None = None
    cors: Cors | None = None
    """Web pages of other origins may ask."""
    log_level: str = "info"
    usage_log: Path | None = None
    route_log: Path | None = None
    """From which `hearth simulate` plays recorded traffic again."""

    @property
    def model_table(self) -> Mapping[str, ModelEntry]:
        return {entry.name: entry for entry in self.models}

    @property
    def static_pods(self) -> tuple[Found, ...]:
        """Pods named by flag or list, and those named for a model, each once, in order."""
        named = [Found(url) for entry in self.models for url in entry.pods or ()]
        return tuple({pod.url: pod for pod in (*reversed(named), *reversed(self.pods))}.values())[::-1]
