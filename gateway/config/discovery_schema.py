"""The JSON Schema of what stands under `discovery:`, for editors."""

from __future__ import annotations

from gateway.config.discovery_places import SCHEMES
from routing.facts import WORDS
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FLAG, NAMES, TEXT

PORT: Schema = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, COUNT.schema["anyOf"][1]]}

FACT: Schema = {"anyOf": [TEXT.schema, {"type": "integer"}, {"type": "array", "items": TEXT.schema}]}


def discovery_schema() -> Schema:
    """All sources."""
    scheduling: Schema = {"enum": ["fcfs", "priority"]}
    own: dict[str, Schema] = {"url": TEXT.schema, "pool": TEXT.schema, "scheduling_policy": scheduling}
    pods: Schema = {
        "type": "array",
        "items": {"anyOf": [TEXT.schema, table(own | facts_schema(), required=("url",))]},
    }
    return table(
        {
            "static": described(table({"pods": pods}), "Pods by their URLs, with what is known of them."),
            "file": described(table({"path": TEXT.schema}, required=("path",)), "A file that lists pods, watched."),
            "dns": described(_one_or_several(_dns()), "Names whose addresses or SRV records are pods."),
            "redis": described(
                {"anyOf": [FLAG.schema, table({"url": TEXT.schema, "keep_s": ABOVE_ZERO.schema})]},
                "The registry of agents on GPU nodes; true: in the Redis that gateways share.",
            ),
            "kubernetes": described(_one_or_several(_kubernetes()), "Pods of a namespace, watched."),
        }
    )


def _one_or_several(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one}]}


def _dns() -> Schema:
    own: dict[str, Schema] = {
        "name": TEXT.schema,
        "port": PORT,
        "scheme": {"enum": list(SCHEMES)},
        "servers": NAMES.schema,
        "timeout_s": ABOVE_ZERO.schema,
        "longest_s": ABOVE_ZERO.schema,
        "pool": TEXT.schema,
    }
    return table(own | facts_schema(), required=("name",))


def _kubernetes() -> Schema:
    texts = ("namespace", "service", "api", "token_file", "ca_file", "region_label", "zone_label", "rack_label")
    return table(
        {
            **dict.fromkeys(texts, TEXT.schema),
            "selector": {"anyOf": [TEXT.schema, {"type": "object", "additionalProperties": TEXT.schema}]},
            "inference_pools": NAMES.schema,
            "port": PORT,
            "scheme": {"enum": list(SCHEMES)},
            "nodes": FLAG.schema,
        }
    )


def facts_schema() -> dict[str, Schema]:
    """What anybody may tell of a pod; which values a fact may have, only its reader knows."""
    return dict.fromkeys(sorted(WORDS), FACT)
