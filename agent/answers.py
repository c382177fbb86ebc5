"""What a vLLM server answers when it is asked about itself, as flat facts. Pure: answers come in as bytes.

Each of these may come from any version, or from something that is no vLLM at all: what does not fit was not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.command_line import bracketed, told_by_transfer

_CACHE = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_ENGINE = re.compile(rb'^vllm:num_requests_running\{[^}]*engine="(\d+)"', re.MULTILINE)


def told_by_version(body: bytes | None) -> dict[str, object]:
    """`GET /version`."""
    version = _mapping(body).get("version")
    return {"version": version} if isinstance(version, str) else {}


def told_by_models(body: bytes | None) -> dict[str, object]:
    """`GET /v1/models`: the names it answers to."""
    cards = _mapping(body).get("data")
    names = [card.get("id") for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    return {"models": found} if (found := [name for name in names if isinstance(name, str)]) else {}


def told_by_metrics(page: bytes | None) -> dict[str, object]:
    """`GET /metrics`: the labels of `vllm:cache_config_info`, and how many engines there are."""
    told: dict[str, object] = {}
    if page is None:
        return told
    if engines := set(_ENGINE.findall(page)):
        told["dp"] = len(engines)
    if (cache := _CACHE.search(page)) is not None:
        labels = dict(re.findall(r'(\w+)="([^"\\]*)"', cache[1].decode("utf-8", "replace")))
        told |= {
            fact: labels[name]
            for name, fact in (("block_size", "block_size"), ("cache_dtype", "kv_dtype"))
            if labels.get(name, "None") not in ("None", "auto", "")
        }
    return told


def told_by_event_sources(body: bytes | None, reached_at: str) -> dict[str, object]:
    """`GET /kv_event_sources`: where rank 0 publishes its KV events, as others reach it."""
    source = _mapping(body).get("0")
    if not isinstance(source, dict) or source.get("publisher") != "zmq":
        return {}
    endpoint = source.get("endpoint")
    if not isinstance(endpoint, str):
        return {}
    return {"kv_events": re.sub(r"//(\*|0\.0\.0\.0|\[::\])(?=:)", f"//{bracketed(reached_at)}", endpoint)}


def told_by_bootstrap(body: bytes | None) -> dict[str, object]:
    """`GET BOOTSTRAP/query` of a Mooncake prefill server: rank 0's engine id."""
    engine = _mapping(body).get("0")
    engine_id = engine.get("engine_id") if isinstance(engine, dict) else None
    return {"engine_id": engine_id} if isinstance(engine_id, str) else {}


def told_by_server(body: bytes | None, reached_at: str) -> tuple[dict[str, object], bool]:
    """`GET /server_info?config_format=json` (development mode): flat facts, and whether it schedules by priority."""
    said = _mapping(body)
    config, variables = _within(said, "vllm_config"), _within(said, "vllm_env")
    parallel, cache = _within(config, "parallel_config"), _within(config, "cache_config")
    sizes = (("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"))
    told: dict[str, object] = {fact: parallel[name] for name, fact in sizes if isinstance(parallel.get(name), int)}
    if isinstance(dtype := cache.get("cache_dtype"), str) and dtype != "auto":
        told["kv_dtype"] = dtype
    texts = {name: str(value) for name, value in variables.items()}
    told |= told_by_transfer(_within(config, "kv_transfer_config"), texts, reached_at)
    return told, _within(config, "scheduler_config").get("policy") == "priority"


def _mapping(body: bytes | None) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = None
    return said if isinstance(said, dict) else {}


def _within(said: Mapping[str, Any], key: str) -> dict[str, Any]:
    held = said.get(key)
    return held if isinstance(held, dict) else {}
