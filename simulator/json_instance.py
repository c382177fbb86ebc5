"""A small value that a JSON schema allows, for answers that must be JSON. Knows the usual words of JSON schema only."""

from __future__ import annotations

import json
from typing import Any

from simulator.language import Speech
from simulator.tokens import BYTES_PER_TOKEN

_BY_TYPE: dict[str, Any] = {"string": "lorem", "integer": 1, "number": 1.5, "boolean": True, "null": None}

DEEPEST = 32
"""Levels before a recursive schema is given up with null."""

MAX_SIZE = 10_000
"""Items or letters; larger values are rejected."""


def json_text(schema: Any, state: int | None = None) -> str:
    """A value of this schema as ASCII JSON; texts that must be long are what a model says in this state.

    Raises ValueError for an invalid schema.
    """
    try:
        return json.dumps(_Instance(json.loads(schema) if isinstance(schema, str) else schema, state).of())
    except (TypeError, AttributeError, LookupError, ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON schema that can be followed: {error}") from None


class _Instance:
    """A value, found by walking down one schema."""

    def __init__(self, root: Any, state: int | None) -> None:
        self._root = root
        self._state = state

    def of(self) -> Any:
        return self._of(self._root, 0)

    def _of(self, schema: Any, depth: int) -> Any:
        """Required properties only, unless it names none."""
        if not isinstance(schema, dict) or depth > DEEPEST:
            return None
        if "$ref" in schema:
            return self._of(self._resolved(schema["$ref"]), depth + 1)
        for key in ("const", "default"):
            if key in schema:
                return schema[key]
        if schema.get("enum"):
            return schema["enum"][0]
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self._of(schema[key][0], depth + 1)
        return self._of_type(schema, depth)

    def _of_type(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        match kind[0] if isinstance(kind, list) else kind:
            case "object":
                properties = schema.get("properties") or {}
                names = schema.get("required") or list(properties)
                return {name: self._of(properties.get(name, {}), depth + 1) for name in names}
            case "array":
                return [self._of(schema.get("items", {}), depth + 1)] * _bounded(schema.get("minItems", 1))
            case "string":
                return self._text("lorem"[: schema.get("maxLength", 5)], _bounded(schema.get("minLength", 0)))
            case "integer" | "number" as number:
                return schema.get("minimum", schema.get("maximum", _BY_TYPE[number]))
            case other:
                return _BY_TYPE[other]

    def _text(self, start: str, length: int) -> str:
        """A text of this length at least."""
        missing = length - len(start)
        if self._state is None or missing <= 0:
            return start.ljust(length, "m")
        return start + "".join(Speech(self._state).pieces(0, missing // BYTES_PER_TOKEN + 1))[:missing]

    def _resolved(self, reference: str) -> Any:
        """What a reference within the schema names."""
        found = self._root
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        return found


def _bounded(count: int) -> int:
    if count > MAX_SIZE:
        raise ValueError(f"{count} is more than {MAX_SIZE}")
    return int(count)
