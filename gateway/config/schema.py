"""The JSON Schema of hearth.yaml, for editors. Whether files are there, and addresses free, only the reader knows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.cors import cors_schema
from gateway.config.discovery_schema import discovery_schema
from gateway.config.exact import LoadTimes
from gateway.config.extproc_words import extproc_schema
from gateway.config.fields import LOG_LEVELS, MOST_PROCESSES
from gateway.config.ladder_schema import ladder_schema, rung_schema
from gateway.config.port_limits import Limits, Timeouts
from gateway.config.retries import retries_schema, stalls_schema
from routing.pairing.roles import RoleTerms
from scorers.registry import SCORERS, routings
from tenancy.json_schema import DRAFT, Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, AMOUNT, COUNT, FLAG, NAMES, TEXT

WHERE: Schema = {"type": "string", "description": "HOST:PORT, with brackets around an IPv6 host."}

OFF: Schema = {"enum": [False, "off"]}

NUMBER: Schema = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(-?[0-9.]+(e[+-]?[0-9]+)?|\$\{.*\})$"}]
}


def config_schema() -> Schema:
    """The whole."""
    return {
        "$schema": DRAFT,
        "title": "Hearth configuration",
        **table(
            {
                **_ports(),
                "policy": described(
                    TEXT.schema, "The file of tenants and their keys; without it everybody may come in."
                ),
                "redis": described(TEXT.schema, "Shared state of several gateways: redis://HOST and other forms."),
                "trusted_proxies": described(NAMES.schema, "Networks whose word about who asks is believed."),
                "pod_api_key": described(TEXT.schema, "What the pods were given as --api-key."),
                "pod_api_key_file": described(TEXT.schema, "The file that holds it, instead."),
                "discovery": described(discovery_schema(), "Where pods come from."),
                "model_list": described({"type": "array", "items": _model()}, "What a pod cannot tell of its models."),
                "routing": described(_routing(), "How a pod is chosen: a name, or what is to be otherwise."),
                "kv_events": described(
                    {"anyOf": [FLAG.schema, _kv_events()]}, "Exact warmth: engines tell what they hold."
                ),
                "roles": described({"anyOf": [FLAG.schema, _roles()]}, "Roles of engines follow the traffic."),
                "canaries": described({"type": "array", "items": _canary()}, "Pods on trial, in their turns."),
                "extproc": described(extproc_schema(), "Where Envoy sends requests to be placed; absent: nowhere."),
                "tls": described(
                    table({"cert": TEXT.schema, "key": TEXT.schema}, required=("cert", "key")),
                    "PEM files of the listener.",
                ),
                "cors": described(cors_schema(), "Web pages that may ask from a browser; absent: none."),
                "usage_log": described(TEXT.schema, "One JSON line of usage per request, for chargeback."),
                "route_log": described(TEXT.schema, "One JSON line per request to play again with another routing."),
                "log": described(table({"level": {"enum": list(LOG_LEVELS)}}), "What is logged."),
                "limits": described(_of_fields(Limits()), "Bounds on what the traffic port takes in."),
                "retries": described(retries_schema(), "How often a request is tried again, and how often all are."),
                "stalls": described(stalls_schema(), "When an engine has been silent for too long."),
                "timeouts": described(_of_fields(Timeouts()), "Bounds on waiting, in seconds."),
            }
        ),
    }


def _ports() -> dict[str, Schema]:
    or_off: Schema = {"anyOf": [WHERE, OFF]}
    count: Schema = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_PROCESSES}, COUNT.schema["anyOf"][1]]}
    return {
        "listen": described(WHERE, "Where clients come in: 127.0.0.1:8000 by default."),
        "processes": described(count, "Workers that share the traffic port, about a core each."),
        "metrics": described(or_off, "Metrics and health, read-only, or off: 127.0.0.1:9090 by default."),
        "admin": described(or_off, "Receipts, fleet, drain, reload, or off: 127.0.0.1:9091 by default."),
        "admin_token": described(TEXT.schema, "Asked for by the admin port; needed beyond loopback."),
        "admin_token_file": described(TEXT.schema, "The file that holds it, instead."),
    }


def _model() -> Schema:
    return table(
        {
            "model_name": described(TEXT.schema, "As the pods call it."),
            "input_cost_per_token": described(AMOUNT.schema, "Money per input token."),
            "output_cost_per_token": described(AMOUNT.schema, "Money per output token."),
            "cache_read_input_token_cost": described(
                AMOUNT.schema, "Money per input token that an engine held already."
            ),
            "pods": described(
                {"type": "array", "items": TEXT.schema, "minItems": 1}, "The only pods that may serve it."
            ),
            "inference_pool": described(TEXT.schema, "The InferencePool whose pods may serve it."),
            "tokenizer": described(TEXT.schema, "For kv_events: a folder with tokenizer.json, or `pod`."),
            "chat_template": described(TEXT.schema, "Where vLLM was given one with --chat-template."),
            "kv_connector": described(TEXT.schema, "How its pods hand KV over, in vLLM's names; pods' facts go first."),
            "kv_bytes_per_token": described(AMOUNT.schema, "KV of a token, over all ranks: what a hand-over moves."),
            **rung_schema(),
            **ladder_schema(),
            "scheduling_policy": described(
                {"enum": ["fcfs", "priority"]}, "What the pods were given as --scheduling-policy."
            ),
        },
        required=("model_name",),
    )


def _routing() -> Schema:
    scorers = {scorer.name: {"anyOf": [_of_fields(scorer(), above_zero=False), OFF]} for scorer in SCORERS}
    whole = table({"name": {"enum": list(routings())}, "scorers": table(scorers), "most_blocks": COUNT.schema})
    return {"anyOf": [{"enum": list(routings())}, whole]}


def _roles() -> Schema:
    return _of_fields(RoleTerms(), above_zero=False)


def _canary() -> Schema:
    return table(
        {
            "name": described(TEXT.schema, "What it is called in logs and metrics."),
            "pool": described(TEXT.schema, "The pool whose pods are on trial."),
            "revision": described(TEXT.schema, "The revision whose pods are on trial."),
            "share": described(NUMBER, "Of the requests that it could serve: 0.05."),
            "ttft_gate": described(NUMBER, "First tokens may take so many times as long: 1.1."),
            "tpot_gate": described(NUMBER, "Tokens may take so many times as long: 1.1."),
            "error": described(NUMBER, "The chance that a sound one is rolled back: 0.05."),
            "least": described(COUNT.schema, "Comparisons before it is accepted: 200."),
            "max_duration_s": described(NUMBER, "An undecided trial is rolled back after so many seconds: 86400."),
        },
        required=("name",),
    )


def _kv_events() -> Schema:
    source = table(
        {"pod": TEXT.schema, "endpoint": TEXT.schema, "replay_endpoint": TEXT.schema, "topic": {"type": "string"}},
        required=("pod", "endpoint"),
    )
    return table(
        {
            "wait_ms": described(AMOUNT.schema, "How long a request waits for it before the shadow caches decide."),
            "most_blocks": described(COUNT.schema, "Followed per engine."),
            "tokenizer_cache_mb": described(COUNT.schema, "Texts whose tokens are remembered, per model."),
            "load_us_per_token": described(
                _of_fields(LoadTimes(), above_zero=False), "Until a slower medium's KV is of use."
            ),
            "sources": described({"type": "array", "items": source}, "Pods that do not tell where they publish."),
        }
    )


def _of_fields(usual: Any, *, above_zero: bool = True) -> Schema:
    """A table whose keys are the fields of a value."""
    kinds: dict[type, Schema] = {
        bool: FLAG.schema,
        str: TEXT.schema,
        int: COUNT.schema if above_zero else NUMBER,
        float: ABOVE_ZERO.schema if above_zero else NUMBER,
    }
    return table({field.name: kinds[type(getattr(usual, field.name))] for field in fields(usual)})
