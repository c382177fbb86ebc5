"""The configuration file: YAML in the words of LiteLLM, vLLM and Kubernetes, read into `Settings`.

Every fault is named at once with its path. A word that a later version will honour is refused, never skipped: who
wrote it counts on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.cors import cors
from gateway.config.discovery import discovered
from gateway.config.exact import kv_events
from gateway.config.extproc_words import extproc
from gateway.config.fields import (
    LOG_LEVELS,
    NOT_SUPPORTED,
    address,
    address_or_off,
    file,
    network,
    place,
    processes,
    redis_url,
    secret,
    secret_file,
)
from gateway.config.models import models
from gateway.config.retries import retries, stalls
from gateway.config.rollout import canaries, roles
from gateway.config.secret import Secret
from gateway.config.values import Routing, Settings
from gateway.runtime.addresses import TlsFiles
from routing.candidates import Scorer
from scorers.registry import SCORERS, routings
from tenancy.document import Locate, Table, Wrong, as_it_stands, one_of, positive, read_document, read_fields, whole


def read_settings(source: str, variables: Mapping[str, str], locate: Locate = as_it_stands) -> tuple[Settings, Table]:
    """What the file says, and its table with the faults found; who has none may use the settings.

    `locate` makes of a relative file name one beside the file.
    """
    root = read_document(source, variables, locate)
    usual = Settings()
    settings = Settings(
        listen=root.get("listen", address, usual.listen),
        processes=root.get("processes", processes, usual.processes),
        metrics=root.get("metrics", address_or_off, usual.metrics),
        admin=root.get("admin", address_or_off, usual.admin),
        admin_token=_secret(root, "admin_token"),
        policy=root.get("policy", file, None),
        redis=root.get("redis", redis_url, None),
        trusted_proxies=root.each("trusted_proxies", network) or (),
        pod_api_key=_secret(root, "pod_api_key"),
        models=models(root),
        routing=_routing(root),
        tls=_tls(root.table("tls")),
        cors=cors(root),
        log_level=_log_level(root.table("log")),
        usage_log=root.get("usage_log", place, None),
        route_log=root.get("route_log", place, None),
        kv_events=kv_events(root),
        extproc=extproc(root),
        roles=roles(root),
        canaries=canaries(root),
        retries=retries(root),
        stalls=stalls(root),
        limits=read_fields(limits, usual.limits, above_zero=True) if (limits := root.table("limits")) else usual.limits,
        timeouts=read_fields(times, usual.timeouts, above_zero=True)
        if (times := root.table("timeouts"))
        else usual.timeouts,
    )
    settings = discovered(root.table("discovery"), settings)
    for word in ("ladders", "telemetry"):
        root.refuse(word, NOT_SUPPORTED)
    root.close()
    return settings, root


def _secret(root: Table, key: str) -> Secret | None:
    """`key`, or `key_file` with the name of the file that holds it."""
    given, filed = root.get(key, secret, None), root.get(f"{key}_file", secret_file, None)
    if given and filed:
        root.fault(f"{key}_file", f"stands beside {key}: which one is meant?")
    return given or filed


def _routing(root: Table) -> Routing:
    """`routing: NAME`, or `routing: {name: NAME, scorers: {SCORER: {PARAMETER: VALUE}}}`.

    `scorers` changes those of the named routing, or adds to them; `SCORER: off` takes one out.
    """
    known = routings()
    name = root.get("routing", lambda value: "" if isinstance(value, dict) else one_of(known)(value), "warm")
    if name:
        return Routing(name, known[name])
    table = root.table("routing")
    if table is None:  # pragma: no cover - only a mapping comes here
        return Routing()
    name = table.get("name", one_of(known), "warm")
    scorers = known[name]
    if (chosen := table.table("scorers")) is not None:
        scorers = _scorers(chosen, scorers)
        if not scorers:
            table.fault("scorers", "must leave a scorer")
    most_blocks = table.get("most_blocks", positive(whole), Routing().most_blocks)
    table.close()
    return Routing(name, scorers, most_blocks)


def _scorers(table: Table, usual: tuple[Scorer, ...]) -> tuple[Scorer, ...]:
    """A scorer's dataclass fields are its parameters."""
    given = {scorer.name: scorer for scorer in usual}
    found: list[Scorer] = []
    for scorer in SCORERS:
        base = given.get(scorer.name)
        if scorer.name in table.keys:
            if table.get(scorer.name, _is_off, default=False):
                continue
            base = base or scorer()
            parameters = table.table(scorer.name)
            base = read_fields(parameters, base) if parameters else base
        if base is not None:
            found.append(base)
    known = [scorer.name for scorer in SCORERS]
    for key in table.keys:
        if key not in known:
            try:
                one_of(known)(key)
            except Wrong as wrong:
                table.fault(key, str(wrong))
    return tuple(found)


def _is_off(value: object) -> bool:
    """YAML 1.1 reads `off` as false."""
    return value is False or value == "off"


def _tls(table: Table | None) -> TlsFiles | None:
    if table is None:
        return None
    cert, key = table.need("cert", file, None), table.need("key", file, None)
    table.close()
    return TlsFiles(cert, key) if cert and key else None


def _log_level(table: Table | None) -> str:
    if table is None:
        return "info"
    level = table.get("level", one_of(LOG_LEVELS), "info")
    table.close()
    return level
