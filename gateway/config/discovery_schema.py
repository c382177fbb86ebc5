"""The JSON Schema of what stands under `discovery:`, for editors."""

from __future__ import annotations

from routing.facts import WORDS
from tenancy.reading.kinds import TEXT
from tenancy.schema import Schema, described, table

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
        }
    )


def facts_schema() -> dict[str, Schema]:
    """What anybody may tell of a pod; which values a fact may have, only its reader knows."""
    return dict.fromkeys(sorted(WORDS), FACT)
