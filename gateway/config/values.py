"""The settings as values. Nothing here reads a file, a flag or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path

from gateway.config.exact import KvEvents, TokenizerEntry
from gateway.config.extproc import ExtProc
from gateway.config.ladder import LadderEntry, RungEntry
from gateway.config.rollout import Roles
from gateway.discovery.places import ELSEWHERE, Places
from gateway.discovery.source import Found
from gateway.limits import Limits, Timeouts
from routing.canary import CanaryTerms
from routing.candidates import Scorer
from routing.lateness import Bounds
from routing.retries import RetryTerms
from scorers.registry import routings


@dataclass(frozen=True, slots=True)
class Address:
    """Where a port listens. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class Secret:
    """Something that must not be printed, and therefore cannot be by accident."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of `model_list`. Prices are in the operator's currency per token."""

    name: str
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    """Of input that an engine held already; None: as all input."""
    pods: tuple[str, ...] | None = None
    """The pods that may serve it, None for all that say they do."""
    tokenizer: TokenizerEntry | None = None
    """How its prompts become tokens, None where the pods' own `/tokenize` does."""
    takes_priority: bool = False
    """Its pods schedule by priority."""
    kv_connector: str | None = None
    """How its pods hand KV over, where they do not tell it themselves."""
    kv_bytes_per_token: float | None = None
    """What a token leaves in a KV cache, over all ranks together."""
    rung: RungEntry = field(default_factory=RungEntry)
    """What it is as a rung of ladders."""
    ladder: LadderEntry | None = None
    """The models behind it, where it is a ladder."""
    inference_pool: str | None = None
    """The InferencePool whose pods may serve it, None for all that say they do."""

    def input_cost(self, tokens: int | None, cached_tokens: int | None) -> float | None:
        """Of a prompt, None where price or tokens are unknown."""
        price, cached_price = self.input_cost_per_token, self.cache_read_input_token_cost
        if tokens is None or price is None:
            return None
        cached = cached_tokens or 0
        return (tokens - cached) * price + cached * (price if cached_price is None else cached_price)

    def output_cost(self, tokens: int | None) -> float | None:
        """Of an answer, None where price or tokens are unknown."""
        return None if tokens is None or self.output_cost_per_token is None else tokens * self.output_cost_per_token


@dataclass(frozen=True, slots=True)
class Routing:
    """The scorers whose seconds are added up, and what the composition is called."""

    name: str = "warm"
    scorers: tuple[Scorer, ...] = field(default_factory=lambda: routings()["warm"])
    most_blocks: int = 1 << 16
    """Per engine, in the index of what was routed where: 64 MB and more of distinct prompt text."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the listener's certificate (with its chain) and key."""

    cert: Path
    key: Path


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
    roles: Roles | None = None
    """Where roles follow the traffic."""
    canaries: tuple[CanaryTerms, ...] = ()
    kv_events: KvEvents | None = None
    """Exact warmth, where it is wanted."""
    extproc: ExtProc | None = None
    """Envoy may send us requests to place."""
    tls: TlsFiles | None = None
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
