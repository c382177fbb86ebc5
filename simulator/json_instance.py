"""A small value that a JSON schema allows, for answers that must be JSON. Knows the usual words of JSON schema only."""

from __future__ import annotations

from typing import Any

_BY_TYPE: dict[str, Any] = {"string": "lorem", "integer": 1, "number": 1.5, "boolean": True, "null": None}

DEEPEST = 32
"""Levels before a recursive schema is given up with null."""


def instance_of(schema: Any, depth: int = 0) -> Any:
    """A value of this schema; required properties only, unless it names none."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return instance_of(schema[key][0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties") or {}
        names = schema.get("required") or list(properties)
        return {name: instance_of(properties.get(name, {}), depth + 1) for name in names}
    if kind == "array":
        return [instance_of(schema.get("items", {}), depth + 1)] * max(int(schema.get("minItems", 1)), 1)
    return _bounded(kind, schema)


def _bounded(kind: str, schema: dict[str, Any]) -> Any:
    value = _BY_TYPE.get(kind)
    if kind in {"integer", "number"} and value is not None:
        return schema.get("minimum", schema.get("maximum", value))
    if kind == "string":
        return "lorem"[: schema.get("maxLength", 5)].ljust(schema.get("minLength", 0), "m")
    return value
