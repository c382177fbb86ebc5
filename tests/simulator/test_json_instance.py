"""Values for JSON schemas."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.json_instance import instance_of


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
        ({}, "lorem"),
        (True, None),
    ],
    ids=str,
)
def test_a_schema_has_a_value(schema: Any, value: Any) -> None:
    """Small, and the same every time."""
    assert instance_of(schema) == value


def test_a_schema_without_end_is_given_up() -> None:
    """A recursive schema does not hang the pod."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["child"] = schema
    depth, value = 0, instance_of(schema)
    while value:
        depth, value = depth + 1, value["child"]
    assert depth < 100
