"""Pieces of JSON Schemas, as editors check YAML files with them: what our readers accept, said in schemas' words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def described(schema: Schema, text: str) -> Schema:
    """Return the schema with the text that an editor shows beside it, in the place of any other."""
    return {**schema, "description": text}


def nullable(schema: Schema) -> Schema:
    """The same, or an empty value, which readers take for an absent key."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    described_by = {key: value for key, value in schema.items() if key == "description"}
    rest = {key: value for key, value in schema.items() if key != "description"}
    choices = rest["anyOf"] if set(rest) == {"anyOf"} else [rest]
    return {**described_by, "anyOf": [*choices, {"type": "null"}]}


def table(properties: Mapping[str, Schema], *, required: tuple[str, ...] = (), **more: object) -> Schema:
    """A mapping of these keys and no others."""
    return {
        "type": "object",
        "properties": {key: held if key in required else nullable(held) for key, held in properties.items()},
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
        **more,
    }


def named(entry: Schema, name: Schema) -> Schema:
    """A mapping of names to entries, each of which may say nothing."""
    return {"type": "object", "additionalProperties": nullable(entry), "propertyNames": name}


def requires(key: str) -> Schema:
    """That a key is there, and not empty."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}
