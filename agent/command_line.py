"""What the command line and the environment of a vLLM server tell of it. Pure: both are arguments.

Words of vLLM 0.32 (`vllm serve --help`, `vllm/envs.py`). A value that another version spells otherwise is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NIXL_PORT, MOONCAKE_PORT = "5600", "8998"
"""vLLM's defaults."""

_SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}

_FACTS = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "block-size": "block_size",
    "kv-cache-dtype": "kv_dtype",
    "revision": "revision",
}

_UNSAID = frozenset(("auto", "", "None"))


def is_server(words: Sequence[str]) -> bool:
    """Whether this is the command of a vLLM server."""
    runs_vllm = any("vllm" in word for word in words)
    return (runs_vllm and "serve" in words) or any("vllm.entrypoints" in word for word in words)


def model_of(words: Sequence[str]) -> str:
    """The model that a server was started with, a name or a folder; empty where that is not to be seen."""
    said = dict(_options(words))
    if named := said.get("model"):
        return named
    after = list(words)[words.index("serve") + 1 :] if "serve" in words else []
    return after[0] if after and not after[0].startswith("-") else ""


def told_by_command(
    words: Sequence[str], variables: Mapping[str, str], reached_at: str
) -> tuple[dict[str, object], bool]:
    """Flat facts, and whether the server schedules by priority. `reached_at`: the host by which others reach it."""
    said = dict(_options(words))
    told: dict[str, object] = {_FACTS[name]: value for name, value in said.items() if name in _FACTS}
    if layout := variables.get("VLLM_KV_CACHE_LAYOUT"):
        told["kv_layout"] = layout
    told |= told_by_transfer(_transfer(said), variables, reached_at)
    kept = {word: value for word, value in told.items() if value not in _UNSAID}
    return kept, said.get("scheduling-policy") == "priority"


def told_by_transfer(config: Mapping[str, Any], variables: Mapping[str, str], reached_at: str) -> dict[str, object]:
    """Flat facts of a `--kv-transfer-config` and the environment that belongs to its connector."""
    connector = config.get("kv_connector")
    if not isinstance(connector, str):
        return {}
    told: dict[str, object] = {"kv_connector": connector}
    told |= {word: config[word] for word in ("kv_role", "engine_id") if isinstance(config.get(word), str)}
    if connector.startswith("Nixl"):
        host = _outside(variables.get("VLLM_NIXL_SIDE_CHANNEL_HOST", ""), reached_at)
        told["side_channel"] = f"{host}:{variables.get('VLLM_NIXL_SIDE_CHANNEL_PORT', NIXL_PORT)}"
    if connector == "MooncakeConnector" and config.get("kv_role") != "kv_consumer":
        told["bootstrap"] = f"{bracketed(reached_at)}:{variables.get('VLLM_MOONCAKE_BOOTSTRAP_PORT', MOONCAKE_PORT)}"
    return told


def _outside(host: str, reached_at: str) -> str:
    """An address that means every interface, or none in particular, is the one by which others reach us."""
    host = reached_at if host in ("", "localhost", "0.0.0.0", "::") else host  # noqa: S104 - compared, not listened on
    return bracketed(host)


def bracketed(host: str) -> str:
    """As an IPv6 address stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if word in _SHORT:
            yield _SHORT[word], following
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name.replace("_", "-"), value if equals else "" if following.startswith("--") else following


def _transfer(said: Mapping[str, str]) -> dict[str, Any]:
    """One JSON text, or one option for each of its words: `--kv-transfer-config.kv_role kv_both`."""
    name = "kv-transfer-config"
    try:
        held = json.loads(said.get(name) or "{}")
    except ValueError:
        held = {}
    config = held if isinstance(held, dict) else {}
    dotted = {key.removeprefix(f"{name}."): value for key, value in said.items() if key.startswith(f"{name}.")}
    return config | {key.replace("-", "_"): value for key, value in dotted.items()}
