"""Flags over environment over file: puts the settings of a start together, and finds contradictions between sections.

`HEARTH_<NAME>` is the variable of `--<name>`; a secret may also come as `HEARTH_<NAME>_FILE`, the path of a file that
holds it. Relative file names in a document are relative to its folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from gateway.config.discovery import parse_pod
from gateway.config.extproc import ExtProcConfig
from gateway.config.fields import (
    LOG_LEVELS,
    parse_address,
    parse_address_or_off,
    parse_file,
    parse_program_count,
    parse_redis_secret,
    parse_secret,
    parse_writable_path,
)
from gateway.config.flags import GivenValue, SettingSpec, read_overrides
from gateway.config.routing import RoutingConfig
from gateway.config.settings import Settings, read_settings
from gateway.runtime.addresses import TlsFiles
from scorers.registry import routings
from tenancy.document import ConfigError, InvalidDocument, Locate, load_yaml, one_of

SETTINGS: tuple[SettingSpec, ...] = (
    SettingSpec("listen", parse_address, "listen address for clients (default 127.0.0.1:8000)"),
    SettingSpec(
        "processes", parse_program_count, "worker processes that share the traffic port (default 1)", metavar="N"
    ),
    SettingSpec("pod", parse_pod, "URL of a vLLM pod; repeatable", metavar="URL", is_list=True),
    SettingSpec("pod-file", parse_file, "file that lists pods; watched for changes", metavar="FILE"),
    SettingSpec(
        "extproc-listen",
        parse_address,
        "listen address for Envoy's external processing filter (default: none)",
        former="extproc",
    ),
    SettingSpec("policy", parse_file, "policy file: tenants and API keys (default: no authentication)", metavar="FILE"),
    SettingSpec("redis", parse_redis_secret, "URL of the Redis that gateways share", metavar="URL", allows_file=True),
    SettingSpec(
        "gateways",
        parse_program_count,
        "gateways that share the engines: without --redis each keeps to an equal part of them (default 1)",
        metavar="N",
    ),
    SettingSpec(
        "metrics-listen",
        parse_address_or_off,
        "listen address of metrics and health, or off (default 127.0.0.1:9464)",
        former="metrics",
    ),
    SettingSpec(
        "admin-listen",
        parse_address_or_off,
        "listen address of receipts, fleet and drain, or off (default 127.0.0.1:9091);"
        " beyond loopback with HEARTH_ADMIN_TOKEN",
        former="admin",
    ),
    SettingSpec(
        "routing", one_of(routings()), "routing by which a pod is chosen (default warm)", metavar="|".join(routings())
    ),
    SettingSpec("tls-cert", parse_file, "certificate chain of the listener, PEM", metavar="FILE"),
    SettingSpec("tls-key", parse_file, "private key of the certificate, PEM", metavar="FILE"),
    SettingSpec("usage-log", parse_writable_path, "one JSON line of usage per request, for chargeback", metavar="FILE"),
    SettingSpec(
        "route-log", parse_writable_path, "one JSON line per request, the input of `hearth simulate`", metavar="FILE"
    ),
    SettingSpec("log-level", one_of(LOG_LEVELS), "minimum log level (default info)", metavar="|".join(LOG_LEVELS)),
    SettingSpec("admin-token", parse_secret, "token of the admin port", allows_file=True, has_flag=False),
    SettingSpec("pod-api-key", parse_secret, "API key of the pods", allows_file=True, has_flag=False),
)


def load_settings(flags: Mapping[str, GivenValue], variables: Mapping[str, str], config: Path | None) -> Settings:
    """Return the settings of a start. `flags`: the values of the command line. Raises `InvalidDocument` with all
    faults.
    """
    settings, faults = Settings(), list[ConfigError]()
    if config is not None:
        settings, faults = read_file(config, variables)
    overlay = read_overrides(SETTINGS, flags, variables, faults)
    settings = _overlaid(settings, overlay, faults)
    faults.extend(_contradictions(settings))
    if faults:
        raise InvalidDocument(faults)
    return settings


def read_file(config: Path, variables: Mapping[str, str]) -> tuple[Settings, list[ConfigError]]:
    """Return the settings of a file and its faults, with the file's name before each path."""
    try:
        source = config.read_text(encoding="utf-8")
    except OSError as error:
        return Settings(), [ConfigError(str(config), error.strerror or "cannot be read")]
    except UnicodeDecodeError:
        return Settings(), [ConfigError(str(config), "is not UTF-8 text")]
    try:
        settings, root = read_settings(source, variables, relative_to(config, CONFIG_FILE_KEYS))
        if not root.keys and load_yaml(source) is None:
            root.add_error("is empty, perhaps because it is being written; an empty configuration is `{}`")
    except InvalidDocument as invalid:
        return Settings(), [fault.within(config) for fault in invalid.errors]
    return settings, [fault.within(config) for fault in root.errors]


def check_file(config: Path, variables: Mapping[str, str]) -> Settings:
    """Return the settings of a file without flags and environment overrides. Raises `InvalidDocument`."""
    settings, faults = read_file(config, variables)
    faults.extend(_contradictions(settings))
    if faults:
        raise InvalidDocument(faults)
    return settings


def _overlaid(settings: Settings, overlay: dict[str, Any], faults: list[ConfigError]) -> Settings:
    if (pods := overlay.pop("pod", None)) is not None:
        overlay["pods"] = pods
    if (name := overlay.pop("routing", None)) is not None:
        overlay["routing"] = RoutingConfig(name, routings()[name])
    if (where := overlay.pop("extproc_listen", None)) is not None:
        overlay["extproc"] = replace(settings.extproc, listen=where) if settings.extproc else ExtProcConfig(where)
    cert, key = overlay.pop("tls_cert", None), overlay.pop("tls_key", None)
    if cert or key:
        held = settings.tls
        cert, key = cert or (held and held.cert), key or (held and held.key)
        if cert and key:
            overlay["tls"] = TlsFiles(cert, key)
        else:
            faults.append(
                ConfigError("--tls-key" if cert else "--tls-cert", "is missing: TLS needs a certificate and its key")
            )
    return replace(settings, **overlay)


def _contradictions(settings: Settings) -> list[ConfigError]:
    """Return contradictions between settings that are valid by themselves."""
    faults = []
    registry = settings.sources.registry
    if registry is not None and registry.url is None and settings.redis is None:
        faults.append(
            ConfigError(
                "discovery.agent_registry", "names no Redis: give it a url, or set `redis` for the whole gateway"
            )
        )
    if settings.key_store is not None and settings.redis is None:
        faults.append(ConfigError("key_store", "needs `redis`"))
    if settings.key_store is not None and settings.key_api and settings.key_api.keys_dir != settings.key_store:
        faults.append(ConfigError("key_api.keys_dir", "must be key_store.mirror_dir"))
    faults.extend(_unreachable_pools(settings))
    faults.extend(_unchecked_cascades(settings))
    faults.extend(_provider_faults(settings))
    admin = settings.admin_listen
    if admin is not None and not admin.is_loopback and settings.admin_token is None:
        words = f"{admin} can be reached from outside: set HEARTH_ADMIN_TOKEN (or _FILE), or listen on loopback"
        faults.append(ConfigError("admin_listen", words))
    named: dict[tuple[str, int], str] = {}
    envoys, supply = settings.extproc, settings.supply
    for name, where in (
        *(
            ("listen", settings.listen),
            ("metrics_listen", settings.metrics_listen),
            ("admin_listen", settings.admin_listen),
        ),
        *(
            (
                ("extproc.listen", envoys.listen),
                ("extproc.health_listen", envoys.health_listen),
                ("extproc.return_listen", envoys.return_listen),
            )
            if envoys
            else ()
        ),
        ("supply.listen", supply.listen if supply else None),
    ):
        if where is None or where.port == 0:
            continue
        other = named.setdefault((where.host, where.port), name)
        if other != name:
            faults.append(ConfigError(name, f"{where} is taken by {other}"))
    return faults


def _unreachable_pools(settings: Settings) -> list[ConfigError]:
    """Return pools that may have no pod and whose model is not configured: its first request would get a 404."""
    if settings.supply is None:
        return []
    named = {entry.name: entry for entry in settings.pools}
    words = "is not in model_list: without a pod, a request for it is rejected as unknown; add it there"
    return [
        ConfigError(f"pools.{pool}.model", f"`{named[pool].model}` {words}")
        for pool, rails in settings.supply.policy.pools.items()
        if rails.min_engines == 0
        and pool in named
        and named[pool].model is not None
        and named[pool].model not in settings.model_table
    ]


def _unchecked_cascades(settings: Settings) -> list[ConfigError]:
    """Return cascades that check answers although Envoy carries these past us, where nothing can hold them back."""
    if settings.extproc is None or settings.extproc.returns_cascades:
        return []
    words = (
        "checks answers, which Envoy does not send through the gateway: set `extproc.return_listen` (and `cascades` "
        "among `extproc.returns`), so that Envoy returns these requests, or set `holdback: off` and "
        "`check_unary: false`, or remove extproc"
    )
    return [
        ConfigError(f"model_list.{entry.name}.cascade", words)
        for entry in settings.models
        if entry.cascade is not None and (entry.cascade.window is not None or entry.cascade.check_unary)
    ]


def _provider_faults(settings: Settings) -> list[ConfigError]:
    """Return models of providers that have no price, that pods are named for, or that Envoy cannot be sent to."""
    faults = []
    for at, endpoint in enumerate(settings.providers.endpoints):
        place = f"providers.endpoints[{at}].models"
        for model in endpoint.models:
            entry = settings.model_table.get(model)
            if entry is None or entry.input_cost_per_token is None or entry.output_cost_per_token is None:
                words = "needs input_cost_per_token and output_cost_per_token in model_list: money is reserved by them"
                faults.append(ConfigError(f"{place}.{model}", words))
            elif entry.pods is not None or entry.inference_pool is not None or entry.cascade is not None:
                words = "is a model of pods, or a cascade, in model_list; give the provider's model a name of its own"
                faults.append(ConfigError(f"{place}.{model}", words))
    extproc = settings.extproc
    if settings.providers.endpoints and extproc is not None and not extproc.returns_cascades:
        words = (
            "need `extproc.return_listen` with `cascades` among `extproc.returns`: Envoy cannot be sent to a provider"
        )
        faults.append(ConfigError("providers.endpoints", words))
    return faults


CONFIG_FILE_KEYS = re.compile(
    r"""  policy | usage_log | route_log | canaries\[\d+\]\.state_file | supply\.state_file
    | (?!.*\.selector\.) [\w.\[\]]*_file
    | ((extproc|key_api|supply)\.)? tls\.\w+
    | key_api\.(keys_dir|audit_log)
    | key_store\.mirror_dir
    | doctor\.baseline
    | model_list\[\d+\]\. cascade\.calibration
    | discovery\.file\.path
    """,
    re.VERBOSE,
)
"""Paths of the keys of hearth.yaml that are file names."""


POLICY_FILE_KEYS = re.compile(r"auth\.(keys_dir|hmac_secret_file|jwt\.jwks_file)")


REDIS_URL_KEYS = re.compile(r"redis|discovery\.agent_registry\.url")
"""Paths of the keys whose URL may contain file names in its options."""


_FILE_OPTION = re.compile(r"(?<=[?&])(ssl_ca_certs|ssl_certfile|ssl_keyfile)=([^&]+)")


def relative_to(document: Path, words: re.Pattern[str]) -> Locate:
    """Return a function that resolves relative file names by the document's folder.

    `words`: the paths of the keys that hold file names.
    """
    folder = document.parent

    def located(name: str) -> str:
        return str(folder / name)

    def locate(path: str, text: str) -> str:
        if REDIS_URL_KEYS.fullmatch(path):
            return _FILE_OPTION.sub(lambda found: f"{found[1]}={quote(located(unquote(found[2])))}", text)
        if not text or not words.fullmatch(path):
            return text
        return located(text)

    return locate
