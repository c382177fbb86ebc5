"""Values for JSON schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.json_instance import json_text


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "lorem"),
        ({"type": "string", "maxLength": 2}, "lo"),
        ({"type": "string", "minLength": 7}, "loremmm"),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": ["null", "string"]}, None),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 3}, 3),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, True),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 1}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, 1),
        ('{"type": "boolean"}', True),
        ({}, "lorem"),
        (True, None),
    ],
    ids=str,
)
def test_a_schema_has_a_value(schema: Any, value: Any) -> None:
    """Small, and the same every time."""
    assert json.loads(json_text(schema)) == value


def test_a_schema_without_end_is_given_up() -> None:
    """A recursive schema does not hang the pod."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["child"] = schema
    depth, value = 0, json.loads(json_text(schema))
    while value:
        depth, value = depth + 1, value["child"]
    assert depth < 100


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        {"type": "dance"},
        {"type": {}},
        {"properties": 5},
        {"$ref": "#/$defs/nowhere"},
        {"type": "array", "minItems": 1 << 70},
        {"type": "string", "minLength": "x"},
    ],
    ids=str,
)
def test_what_is_no_schema_is_rejected(schema: Any) -> None:
    """With one kind of error, whatever is wrong."""
    with pytest.raises(ValueError, match="not a JSON schema"):
        json_text(schema)
