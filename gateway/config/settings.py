"""The configuration as a whole: `Settings`, its reader from YAML, its JSON Schema, and its display without secrets.

The file uses the names of LiteLLM, vLLM and Kubernetes. Every fault is reported at once with its path. A key that only
a later version supports is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from gateway.config.cors import CorsPolicy, cors_schema, read_cors
from gateway.config.discovery import NO_SOURCES, DiscoveredPod, DiscoverySources, discovery_schema, read_discovery
from gateway.config.doctor import DoctorConfig, doctor_schema, read_doctor
from gateway.config.extproc import ExtProcConfig, extproc_schema, read_extproc
from gateway.config.fields import (
    ADDRESS_SCHEMA,
    LOG_LEVELS,
    MAX_PROGRAMS,
    NOT_SUPPORTED,
    OFF_SCHEMA,
    Secret,
    certificate_schemas,
    parse_address,
    parse_address_or_off,
    parse_file,
    parse_network,
    parse_program_count,
    parse_redis_secret,
    parse_writable_path,
    read_secret,
    schema_of_fields,
)
from gateway.config.key_api import KeyApiConfig, key_api_schema, key_store_schema, read_key_api, read_key_store
from gateway.config.kv_events import KvEventsConfig, kv_events_schema, read_kv_events
from gateway.config.limits import (
    Limits,
    Timeouts,
    read_retries,
    read_stall_detection,
    retries_schema,
    stall_detection_schema,
)
from gateway.config.models import ModelEntry, model_schema, read_models
from gateway.config.pools import PoolEntry, pools_schema, read_pools
from gateway.config.providers import ProvidersConfig, providers_schema, read_providers
from gateway.config.renamed_keys import fault_of_renamed
from gateway.config.rollout import CanaryConfig, canary_schema, read_canaries, read_roles, roles_schema
from gateway.config.routing import RoutingConfig, read_routing, routing_schema
from gateway.config.supply import SupplyConfig, read_supply, supply_schema
from gateway.config.tracing import TracingConfig, read_tracing, tracing_schema
from gateway.runtime.addresses import Address, TlsFiles
from routing.pairing.roles import RoleTerms
from routing.retries import RetryTerms
from routing.stall_detection import StallBounds
from tenancy.document import DocumentTable, Locate, one_of, read_document, read_fields, unchanged
from tenancy.json_schema import DRAFT, Schema, described, table
from tenancy.reading.fields import COUNT, FLAG, NAMES, TEXT


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a start, with their defaults."""

    listen: Address = Address("127.0.0.1", 8000)
    processes: int = 1
    """Workers that share the traffic port: a core's worth of streams each."""
    metrics_listen: Address | None = Address("127.0.0.1", 9464)
    admin_listen: Address | None = Address("127.0.0.1", 9091)
    admin_token: Secret | None = None
    policy: Path | None = None
    redis: Secret | None = None
    gateways: int = 1
    """Gateways that share the engines, this one included. Without `redis` each keeps to an equal part of every engine;
    with it they count each other.
    """
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    pods: tuple[DiscoveredPod, ...] = ()
    pod_file: Path | None = None
    sources: DiscoverySources = NO_SOURCES
    """Sources of pods beside the static list and the file."""
    pod_api_key: Secret | None = None
    models: tuple[ModelEntry, ...] = ()
    providers: ProvidersConfig = field(default_factory=ProvidersConfig)
    """Endpoints outside the fleet."""
    pools: tuple[PoolEntry, ...] = ()
    """What engines cost, for metrics."""
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: RetryTerms = field(default_factory=RetryTerms)
    stall_detection: StallBounds = field(default_factory=StallBounds)
    """When a silent engine or stream counts as stalled."""
    roles: RoleTerms | None = None
    """None: engines keep their roles."""
    supply: SupplyConfig | None = None
    """None: no desired engines are computed."""
    canaries: tuple[CanaryConfig, ...] = ()
    """None or one: a second canary is rejected."""
    kv_events: KvEventsConfig | None = None
    """None: only the approximate prefix-cache index."""
    extproc: ExtProcConfig | None = None
    """None: no listener for Envoy."""
    tls: TlsFiles | None = None
    cors: CorsPolicy | None = None
    """None: browsers reject responses for pages of other origins."""
    log_level: str = "info"
    usage_log: Path | None = None
    route_log: Path | None = None
    """Input of `hearth simulate`, to replay recorded traffic."""
    doctor: DoctorConfig = field(default_factory=DoctorConfig)
    """How the fleet is diagnosed."""
    key_api: KeyApiConfig | None = None
    key_store: Path | None = None
    """The folder that mirrors the keys in Redis; None: keys are not in Redis."""
    """None: no listener for the management of keys."""
    tracing: TracingConfig | None = None
    """None: no spans; a client's trace headers go to pods unchanged."""

    @property
    def model_table(self) -> Mapping[str, ModelEntry]:
        return {entry.name: entry for entry in self.models}

    @property
    def engine_hour_prices(self) -> Mapping[str, float]:
        """Cost of an engine-hour by pool."""
        return {entry.name: entry.cost_per_engine_hour for entry in self.pools}

    @property
    def configured_pods(self) -> tuple[DiscoveredPod, ...]:
        """Return the pods named by flags, the static list or a model, each once, in order."""
        named = [DiscoveredPod(url) for entry in self.models for url in entry.pods or ()]
        return tuple({pod.url: pod for pod in (*reversed(named), *reversed(self.pods))}.values())[::-1]


def read_settings(
    source: str, variables: Mapping[str, str], locate: Locate = unchanged
) -> tuple[Settings, DocumentTable]:
    """Parse a file. Returns the settings and its table, whose `faults` must be empty for them to be used.

    `locate` resolves the relative file names in the document.
    """
    root = read_document(source, variables, locate)
    root.reject_paths(fault_of_renamed)
    defaults = Settings()
    settings = Settings(
        listen=root.get("listen", parse_address, defaults.listen),
        processes=root.get("processes", parse_program_count, defaults.processes),
        metrics_listen=root.get("metrics_listen", parse_address_or_off, defaults.metrics_listen),
        admin_listen=root.get("admin_listen", parse_address_or_off, defaults.admin_listen),
        admin_token=read_secret(root, "admin_token"),
        policy=root.get("policy", parse_file, None),
        redis=root.get("redis", parse_redis_secret, None),
        gateways=root.get("gateways", parse_program_count, defaults.gateways),
        trusted_proxies=root.each("trusted_proxies", parse_network) or (),
        pod_api_key=read_secret(root, "pod_api_key"),
        models=read_models(root),
        providers=read_providers(root),
        pools=read_pools(root),
        routing=read_routing(root),
        tls=_tls(root.table("tls")),
        cors=read_cors(root),
        log_level=_log_level(root.table("log")),
        usage_log=root.get("usage_log", parse_writable_path, None),
        route_log=root.get("route_log", parse_writable_path, None),
        tracing=read_tracing(root),
        doctor=read_doctor(root),
        key_api=read_key_api(root),
        key_store=read_key_store(root),
        kv_events=read_kv_events(root),
        extproc=read_extproc(root),
        roles=read_roles(root),
        canaries=read_canaries(root),
        retries=read_retries(root),
        stall_detection=read_stall_detection(root),
        limits=read_fields(limits, defaults.limits, above_zero=True)
        if (limits := root.table("limits"))
        else defaults.limits,
        timeouts=read_fields(times, defaults.timeouts, above_zero=True)
        if (times := root.table("timeouts"))
        else defaults.timeouts,
    )
    settings = replace(settings, supply=read_supply(root, frozenset(entry.name for entry in settings.pools)))
    if (discovery := root.table("discovery")) is not None:
        pools = tuple(dict.fromkeys(entry.inference_pool for entry in settings.models if entry.inference_pool))
        pods, pod_file, places = read_discovery(discovery, pools)
        settings = replace(settings, pods=pods, pod_file=pod_file, sources=places)
    for word in ("ladders", "telemetry"):
        root.reject_unknown(word, NOT_SUPPORTED)
    root.close()
    return settings, root


def _tls(section: DocumentTable | None) -> TlsFiles | None:
    if section is None:
        return None
    cert, key = section.get_required("cert", parse_file, None), section.get_required("key", parse_file, None)
    section.close()
    return TlsFiles(cert, key) if cert and key else None


def _log_level(section: DocumentTable | None) -> str:
    if section is None:
        return "info"
    level = section.get("level", one_of(LOG_LEVELS), "info")
    section.close()
    return level


def config_schema() -> Schema:
    """Return the JSON Schema of hearth.yaml. Whether files exist and addresses are free, only the reader checks."""
    return {
        "$schema": DRAFT,
        "title": "Hearth configuration",
        **table(
            {
                **_ports(),
                "policy": described(
                    TEXT.schema, "Policy file: tenants and API keys; absent: requests are not authenticated."
                ),
                "redis": described(TEXT.schema, "URL of the Redis that gateways share."),
                "gateways": described(
                    _count_up_to(MAX_PROGRAMS),
                    "Gateways that share the engines; without `redis` each keeps to an equal part of them (default 1).",
                ),
                "trusted_proxies": described(
                    NAMES.schema, "Networks whose forwarding and identity headers are trusted."
                ),
                "pod_api_key": described(TEXT.schema, "API key of the pods, as given to vLLM's --api-key."),
                "pod_api_key_file": described(TEXT.schema, "File that contains the pods' API key."),
                "discovery": described(discovery_schema(), "Sources of pods."),
                "model_list": described(
                    {"type": "array", "items": model_schema()}, "Models: prices, pods and cascades."
                ),
                "providers": described(providers_schema(), "Endpoints outside the fleet, which policies must allow."),
                "pools": described(pools_schema(), "Pools: what an engine costs, for metrics."),
                "routing": described(
                    routing_schema(), "How a pod is chosen: the name of a routing, or a mapping that changes one."
                ),
                "kv_events": described(
                    {"anyOf": [FLAG.schema, kv_events_schema()]},
                    "Precise prefix-cache index from the engines' KV events.",
                ),
                "roles": described(
                    {"anyOf": [FLAG.schema, roles_schema()]},
                    "Engines move between prefill and decode with the traffic.",
                ),
                "supply": described(
                    {"anyOf": [FLAG.schema, supply_schema()]},
                    "Desired engines of each pool, and the listener of KEDA's external scaler; absent: none.",
                ),
                "canaries": described(
                    {"type": "array", "items": canary_schema()},
                    "Pods on trial with a share of the traffic; at most one entry.",
                ),
                "extproc": described(
                    extproc_schema(), "Listener for Envoy's external processing filter; absent: none."
                ),
                "tls": described(
                    table(certificate_schemas(), required=("cert", "key")),
                    "PEM files of the traffic listener.",
                ),
                "cors": described(cors_schema(), "Origins whose web pages may call the gateway; absent: none."),
                "usage_log": described(TEXT.schema, "One JSON line of usage per request, for chargeback."),
                "route_log": described(TEXT.schema, "One JSON line per request, the input of `hearth simulate`."),
                "doctor": described(doctor_schema(), "Diagnosis of the fleet."),
                "key_api": described(key_api_schema(), "Listener on which API keys are managed; absent: none."),
                "key_store": described(key_store_schema(), "Keys in Redis, mirrored to a folder; absent: in folders."),
                "tracing": described(tracing_schema(), "OpenTelemetry traces; absent: none."),
                "log": described(
                    table({"level": described({"enum": list(LOG_LEVELS)}, "Minimum level (default info).")}), "Logging."
                ),
                "limits": described(schema_of_fields(Limits()), "Limits on what the traffic port accepts."),
                "retries": described(retries_schema(), "Retries and resumes: per request, and the budget of all."),
                "stall_detection": described(
                    stall_detection_schema(), "When a silent engine or stream counts as stalled."
                ),
                "timeouts": described(schema_of_fields(Timeouts()), "Maximum waits, in seconds."),
            }
        ),
    }


def _count_up_to(maximum: int) -> Schema:
    return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": maximum}, COUNT.schema["anyOf"][1]]}


def _ports() -> dict[str, Schema]:
    or_off: Schema = {"anyOf": [ADDRESS_SCHEMA, OFF_SCHEMA]}
    return {
        "listen": described(ADDRESS_SCHEMA, "Listen address for clients, HOST:PORT (default 127.0.0.1:8000)."),
        "processes": described(_count_up_to(MAX_PROGRAMS), "Worker processes that share the traffic port."),
        "metrics_listen": described(
            or_off, "Listen address of metrics and health, read-only, or off (default 127.0.0.1:9464)."
        ),
        "admin_listen": described(
            or_off, "Listen address of receipts, fleet, drain and reload, or off (default 127.0.0.1:9091)."
        ),
        "admin_token": described(
            TEXT.schema, "Token that admin requests must send; required unless admin_listen is loopback."
        ),
        "admin_token_file": described(TEXT.schema, "File that contains the admin token."),
    }


def show_settings(settings: Settings) -> dict[str, object]:
    """Return every field by name as JSON values; secrets and fields hidden from repr are left out."""
    return {field.name: _shown(getattr(settings, field.name)) for field in fields(settings)}


def _shown(value: Any) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case Secret() | Address():
            return str(value)
        case RoutingConfig():
            return {"name": value.name, "scorers": {scorer.name: _shown(scorer) for scorer in value.scorers}}
        case tuple():
            return [_shown(held) for held in value]
        case Mapping():
            return {str(key): _shown(held) for key, held in value.items()}
        case _ if is_dataclass(value):
            return {field.name: _shown(getattr(value, field.name)) for field in fields(value) if field.repr}
        case _:
            return str(value)
