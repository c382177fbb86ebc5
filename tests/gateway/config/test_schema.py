"""The schema of hearth.yaml knows the words that the reader knows, where it knows them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.config.settings import config_schema, read_settings
from scorers.registry import SCORERS
from tenancy.document import DocumentTable

SCHEMA = config_schema()


def words(schema: Any, path: str = "") -> Iterator[str]:
    """Every path that a schema knows; a list's entries are those of its first."""
    for choice in schema.get("anyOf", ()):
        yield from words(choice, path)
    if "items" in schema:
        yield from words(schema["items"], f"{path}[0]")
    for key, held in schema.get("properties", {}).items():
        below = f"{path}.{key}" if path else key
        yield below
        yield from words(held, below)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("policy.yaml", "cert", "key", "pods", "secret"):
        (tmp_path / name).write_text("x")
    return tmp_path


ASKED: dict[str, Any] = {
    "dns": [{"name": "pods.example", "port": 8000, "role": "decode"}],
    "agent_registry": {"url": "redis://h", "stale_ttl_s": 5},
    "kubernetes": [{"selector": "app=vllm"}],
}
"""Sources that ask others; of those that may stand once or in a list, the list."""


def full(folder: Path) -> dict[str, Any]:
    """A configuration that opens every table."""
    return {
        "model_list": [
            {
                "model_name": "a",
                "cascade": {
                    "models": ["b", "c"],
                    "holdback": {},
                    "shadow": {},
                    "collect": {"file": f"{folder}/labels.jsonl"},
                },
            }
        ],
        "discovery": {"static": {"pods": [{"url": "http://a:1"}]}, "file": {"path": f"{folder}/pods"}} | ASKED,
        "routing": {
            "scorers": {
                "session_affinity": {},
                "interference": {},
                "stream_stall": {},
                "hot_prefix_replication": {},
                "lora_affinity": {},
                "slow_start": {},
                "prompt_length": {},
                "decode_role": {},
                "prefill_stall": {},
                "constrained_decoding": {},
                "spill": {},
                "role_drain": {},
                "distance": {},
            }
        },
        "kv_events": {"load_s_per_token": {}, "sources": [{"pod": "http://a:1", "endpoint": "tcp://a:5"}]},
        "roles": {},
        "canaries": [{"name": "new", "revision": "v2"}],
        "pools": [{"name": "small-pods", "cost_per_engine_hour": 2.4}],
        "tls": {"cert": f"{folder}/cert", "key": f"{folder}/key"},
        "extproc": {
            "listen": "127.0.0.1:9002",
            "tls": {"cert": f"{folder}/cert", "key": f"{folder}/key", "client_ca": f"{folder}/cert"},
        },
        "providers": {
            "endpoints": [
                {
                    "name": "acme-eu",
                    "provider": "acme",
                    "region": "eu",
                    "base_url": "https://api.acme.example",
                    "api": "openai",
                    "models": {"cloud": "large"},
                    "quirks": {},
                }
            ]
        },
        "cors": {"origins": ["https://app.example.com"]},
        "log": {},
        "tracing": {"endpoint": "http://127.0.0.1:4318"},
        "key_store": {"mirror_dir": str(folder)},
        "doctor": {},
        "key_api": {
            "listen": "127.0.0.1:9092",
            "keys_dir": str(folder),
            "audit_log": f"{folder}/audit",
            "tls": {"cert": f"{folder}/cert", "key": f"{folder}/key", "client_ca": f"{folder}/cert"},
            "oidc": {"issuer": "https://sso.example", "audiences": ["hearth"]},
            "clients": [{"name": "ci", "role": "operator"}],
        },
        "limits": {},
        "timeouts": {},
        "retries": {},
        "stall_detection": {},
    }


def test_the_schema_is_one() -> None:
    """By the rules of schemas."""
    Draft202012Validator.check_schema(SCHEMA)


def test_schema_and_reader_know_the_same_keys(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a word may stand; those of later versions, and removed ones, are known to neither."""
    requested: set[str] = set()
    close = DocumentTable.close

    def closing(table: DocumentTable) -> None:
        rejected = {fault.path for fault in table.errors if re.search("not supported|removed: ", fault.message)}
        known = {f"{table.path}.{key}" if table.path else key for key in table._read}
        requested.update(known - rejected)
        close(table)

    monkeypatch.setattr(DocumentTable, "close", closing)
    later = dict.fromkeys(("ladders", "telemetry"), 1)
    document = full(files)
    document["model_list"][0] |= dict.fromkeys(("aliases", "litellm_params", "tokenizer", "chat_template"), 1)
    document["kv_events"]["tokenizer_cache_mb"] = 1
    read_settings(yaml.safe_dump(document | later), {})
    known = set(words(SCHEMA))
    # A pod's own words, the names of scorers, and words of `supply` that are not set, are not read by way of a table.
    known -= {word for word in known if ".pods[0]." in word or word.startswith("supply.")}
    known -= {word for word in known if word.startswith(("discovery.dns.", "discovery.kubernetes."))}
    assert known == requested | {f"routing.scorers.{scorer.name}" for scorer in SCORERS}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"listen": "[::1]:8000", "metrics_listen": False, "admin_listen": "off", "processes": 4},
        {"routing": "least-loaded", "kv_events": True, "log": None},
        {"routing": {"scorers": {"session_affinity": False, "lora_affinity": {"load_s": "2e-1"}}}},
        {"limits": {"max_body_bytes": 5}, "timeouts": {"drain_s": 0.5}},
        {"trusted_proxies": ["10.0.0.0/8"], "redis": "redis://h"},
        {"model_list": [{"model_name": "a", "input_cost_per_token": "2e-7", "pods": ["http://a:1"]}]},
        {"discovery": {"dns": {"name": "_http._tcp.pods.example"}, "agent_registry": True}},
        {"discovery": {"kubernetes": {"selector": {"app": "vllm"}, "namespace": "x", "nodes": True}}},
        {"discovery": {"kubernetes": {"inference_pools": ["a"], "port": 0}}},
        {"discovery": {"dns": {"port": 8000}}},
        {"discovery": {"agent_registry": {"stale_ttl_s": 0}}},
        {
            "retries": {"max_attempts": 2, "budget_ratio": 0.1, "budget_burst": 0, "max_resumes": 0},
            "stall_detection": {"engine_min_s": 5},
        },
        {"retries": {"budget_ratio": 1.5}},
        {"retries": {"max_resumes": -1}},
        {"retries": {"budget_burst": 1.5}},
        {"stall_detection": {"factor": 0}},
        {"listen": 8000},
        {"processes": 0},
        {"routing": "warn"},
        {"kv_events": "yes"},
        {"limits": {"max_body_bytes": 0}},
        {"timeouts": {"drain": 5}},
        {"model_list": [{}]},
        {"model_list": [{"model_name": "a", "input_cost_per_token": -1}]},
        {"model_list": [{"model_name": "a", "pods": []}]},
        {"log": {"level": "loud"}},
        {"lisen": "a:1"},
        {"discovery": {"static": {"pods": [{"url": "http://a:1", "zonne": "x"}]}}},
        {"discovery": {"static": {"pods": [{"url": "http://a:1", "role": "prefill", "tp": 2, "nics": ["a"]}]}}},
    ],
)
def test_schema_and_reader_agree(files: Path, change: dict[str, Any]) -> None:
    """What one refuses the other does too."""
    document = full(files) | change
    _, root = read_settings(yaml.safe_dump(document), {})
    errors = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]
    assert bool(root.errors) == bool(errors), (root.errors, errors)
