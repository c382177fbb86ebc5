"""One vLLM server beside the agent: probes it over HTTP, and parses what it answers into flat facts.

An answer may come from any version, or from something that is not vLLM: what does not fit is left out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from agent.server_process import (
    ServerCommand,
    facts_from_command,
    facts_from_kv_transfer,
    facts_from_model_config,
    settings_from_command,
    url_host,
)
from routing.server_settings import NO_SETTINGS, ServerSettings

MAX_RESPONSE_BYTES = 8 << 20
"""A metrics page is 60 KB; the bound keeps a server from filling our memory."""


RESPONSE_TIMEOUT_S = 2.0
"""After this time a probe counts as missed; the facts known so far stay valid."""


MAX_MISSED_PROBES = 3
"""Missed probes in a row after which a server is gone: a single one may be a long pause."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the agent probes a server, and where gateways reach it."""

    probe_url: str
    url: str

    @property
    def port(self) -> int:
        return urlsplit(self.probe_url).port or 0

    @property
    def advertised_host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(slots=True)
class ProbedServer:
    """State of one server; written only by its probes."""

    address: ServerAddress
    is_healthy: bool = False
    facts: dict[str, object] = field(default_factory=dict)
    takes_priority: bool = False
    settings: ServerSettings = NO_SETTINGS
    missed_probes: int = 0
    is_adopted: bool = False
    """Whether its facts are those of an earlier agent: the first probe that it answers reads them again."""


class ServerProber:
    """Probes servers over HTTP, and reads their command lines from the machine."""

    def __init__(
        self, session: aiohttp.ClientSession, command_behind: Callable[[int], ServerCommand], api_key: str | None = None
    ) -> None:
        self._session = session
        self._command_behind = command_behind
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S)

    async def probe(self, server: ProbedServer) -> None:
        """Update its health, and its facts if it has just become healthy."""
        was_well, status = server.is_healthy, await self._status(f"{server.address.probe_url}/health")
        if status is None:
            server.missed_probes += 1
            server.is_healthy = was_well and server.missed_probes < MAX_MISSED_PROBES
            return
        server.missed_probes, server.is_healthy = 0, status == 200
        if not server.is_healthy:
            return
        if not was_well or not server.facts or server.is_adopted:
            server.is_adopted = False
            await self._take_facts(server)
        # LoRA adapters are loaded and unloaded at run time.
        server.facts |= facts_from_models(await self._body(f"{server.address.probe_url}/v1/models"))

    async def is_vllm(self, spot: ServerAddress) -> bool:
        """Return whether the address answers `/version` as vLLM does."""
        return bool(facts_from_version(await self._body(f"{spot.probe_url}/version")))

    async def _take_facts(self, server: ProbedServer) -> None:
        """Merge facts, the most reliable source last: metrics, command line, the server's own endpoints."""
        spot = server.address
        base = spot.probe_url
        raw_facts = facts_from_metrics(await self._body(f"{base}/metrics"))
        command = self._command_behind(spot.port)
        if command.arguments:
            more, takes_priority = facts_from_command(command.arguments, command.variables, spot.advertised_host)
            weights = command.arguments, command.variables, command.root, more.get("kv_dtype")
            more |= await asyncio.to_thread(facts_from_model_config, *weights)
            server.settings = await asyncio.to_thread(settings_from_command, *weights[:3])
        else:
            # In development mode only, and it takes the server a second: used only without a command line.
            body = await self._body(f"{base}/server_info?config_format=json")
            more, takes_priority = facts_from_server_info(body, spot.advertised_host)
        raw_facts |= more
        raw_facts |= facts_from_version(await self._body(f"{base}/version"))
        raw_facts |= facts_from_event_sources(await self._body(f"{base}/kv_event_sources"), spot.advertised_host)
        if (bootstrap := raw_facts.get("bootstrap")) is not None:
            raw_facts |= facts_from_bootstrap(await self._body(f"http://{bootstrap}/query"))
        server.facts, server.takes_priority = raw_facts, takes_priority

    async def _status(self, url: str) -> int | None:
        """Return the HTTP status, None without an answer in time, 0 if the connection is refused."""
        try:
            async with self._session.get(url, timeout=self._timeout, allow_redirects=False) as answer:
                return answer.status
        except aiohttp.ClientConnectorError:
            return 0
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _body(self, url: str) -> bytes | None:
        try:
            async with self._session.get(
                url, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        return None
                return bytes(body) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None


_CACHE = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)


_ENGINE = re.compile(rb'^vllm:num_requests_running\{[^}]*engine="(\d+)"', re.MULTILINE)


def facts_from_version(body: bytes | None) -> dict[str, object]:
    """Parse `GET /version`."""
    version = _mapping(body).get("version")
    return {"version": version} if isinstance(version, str) else {}


def facts_from_models(body: bytes | None) -> dict[str, object]:
    """Parse `GET /v1/models`: the names of models and adapters."""
    cards = _mapping(body).get("data")
    names = [card.get("id") for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    return {"models": found} if (found := [name for name in names if isinstance(name, str)]) else {}


def facts_from_metrics(page: bytes | None) -> dict[str, object]:
    """Parse `GET /metrics`: the labels of `vllm:cache_config_info`, and the number of engines."""
    raw_facts: dict[str, object] = {}
    if page is None:
        return raw_facts
    if engines := set(_ENGINE.findall(page)):
        raw_facts["dp"] = len(engines)
    if (cache := _CACHE.search(page)) is not None:
        labels = dict(re.findall(r'(\w+)="([^"\\]*)"', cache[1].decode("utf-8", "replace")))
        raw_facts |= {
            fact: labels[name]
            for name, fact in (("block_size", "block_size"), ("cache_dtype", "kv_dtype"))
            if labels.get(name, "None") not in ("None", "auto", "")
        }
    return raw_facts


def facts_from_event_sources(body: bytes | None, reached_at: str) -> dict[str, object]:
    """Parse `GET /kv_event_sources`: the endpoint at which gateways reach the KV events of rank 0."""
    source = _mapping(body).get("0")
    if not isinstance(source, dict) or source.get("publisher") != "zmq":
        return {}
    endpoint = source.get("endpoint")
    if not isinstance(endpoint, str):
        return {}
    return {"kv_events": re.sub(r"//(\*|0\.0\.0\.0|\[::\])(?=:)", f"//{url_host(reached_at)}", endpoint)}


def facts_from_bootstrap(body: bytes | None) -> dict[str, object]:
    """Parse `GET BOOTSTRAP/query` of a Mooncake prefill server: rank 0's engine id."""
    engine = _mapping(body).get("0")
    engine_id = engine.get("engine_id") if isinstance(engine, dict) else None
    return {"engine_id": engine_id} if isinstance(engine_id, str) else {}


def facts_from_server_info(body: bytes | None, reached_at: str) -> tuple[dict[str, object], bool]:
    """Parse `GET /server_info?config_format=json` (development mode).

    Returns flat facts, and whether the server schedules by priority.
    """
    document = _mapping(body)
    config, variables = _within(document, "vllm_config"), _within(document, "vllm_env")
    parallel, cache = _within(config, "parallel_config"), _within(config, "cache_config")
    sizes = (("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"))
    raw_facts: dict[str, object] = {fact: parallel[name] for name, fact in sizes if isinstance(parallel.get(name), int)}
    if isinstance(dtype := cache.get("cache_dtype"), str) and dtype != "auto":
        raw_facts["kv_dtype"] = dtype
    texts = {name: str(value) for name, value in variables.items()}
    raw_facts |= facts_from_kv_transfer(_within(config, "kv_transfer_config"), texts, reached_at)
    return raw_facts, _within(config, "scheduler_config").get("policy") == "priority"


def _mapping(body: bytes | None) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        document = None
    return document if isinstance(document, dict) else {}


def _within(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    held = document.get(key)
    return held if isinstance(held, dict) else {}
