"""The check of JSON against a client's schema: right where it speaks, bounded, and deaf to expressions."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.signals.json_schema import conforms

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "boss": {"$ref": "#/$defs/boss"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"boss": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
}


@pytest.mark.parametrize(
    ("value", "is_met"),
    [
        ({"name": "Ada"}, True),
        ({"name": "Ada", "age": 36, "tags": ["a"], "boss": {"name": "Charles", "boss": None}}, True),
        ({"name": ""}, False),
        ({"name": "Ada", "age": 150}, False),
        ({"name": "Ada", "age": 1.5}, False),
        ({"name": "Ada", "age": True}, False),
        ({"name": "Ada", "tags": ["a", "b", "a"]}, False),
        ({"name": "Ada", "tags": ["c"]}, False),
        ({"name": "Ada", "boss": {"age": 3}}, False),
        ({"name": "Ada", "more": 1}, False),
        ({}, False),
        ([], False),
    ],
)
def test_what_fits(value: object, is_met: bool) -> None:
    """Types, bounds, options, names and references into the schema itself."""
    assert conforms(value, PERSON) is is_met


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
SCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({}, optional={"type": TYPES, "minimum": st.integers(-2, 2), "maxLength": st.integers(0, 2)})
    | st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
            "required": st.lists(st.sampled_from("xy"), unique=True, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=5,
)


@given(VALUES, SCHEMAS)
def test_it_agrees_with_a_complete_validator(value: object, schema: object) -> None:
    """On the words that it knows it says what a full implementation says."""
    assert conforms(value, schema) == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_expressions_of_clients_are_never_run() -> None:
    """One that would run for years is passed over, and so are names that only an expression could judge."""
    assert conforms("a" * 40 + "!", {"type": "string", "pattern": "^(a+)+$"})
    assert conforms({"aaaa": 1}, {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}] * 50},
        {"items": {"anyOf": [{"items": {"$ref": "#"}}] * 30}},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/nowhere"},
        {"type": "frog"},
        {"type": 3, "minimum": "x", "enum": {}, "required": 4},
    ],
)
def test_what_is_unknown_is_taken_as_met(schema: object) -> None:
    """Loops, foreign places and nonsense neither run long nor make a good answer escalate."""
    assert conforms([[[1]]] * 1_000, schema)


def test_a_long_reference_is_not_followed_at_each_item() -> None:
    """Its length times the items of an answer would hold up everybody: 5 MB and 10,000 items take minutes."""
    read: list[int] = []

    class Reference(str):
        __slots__ = ()

        def __getitem__(self, key: object) -> str:
            read.append(len(self))
            return str(self)[key]  # type: ignore[index]

    schema = {"items": {"$ref": Reference("#" + "/a" * 2_000)}}
    assert conforms([1] * 10_000, schema)
    assert len(read) <= 1


@pytest.mark.parametrize("value", [[1] * 30_000, {str(number): 1 for number in range(30_000)}])
def test_large_values_are_not_compared_at_each_step(value: list[int] | dict[str, int]) -> None:
    """Thousands of references to one long option, each of which would be compared to its end."""
    compared: list[int] = []

    class Option(type(value)):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return bool(super().__eq__(other))

        __hash__ = None  # type: ignore[assignment]

    schema = {"allOf": [{"$ref": "#/option"}] * 5_000, "option": {"const": Option(value)}}
    assert conforms(value, schema)
    assert not compared


def test_deep_values_are_not_compared() -> None:
    """Deeper than a comparison goes: it would fail in the read of a pod's answer, and that pod would count as lost."""
    value: list[object] = []
    option: list[object] = []
    for _ in range(5_000):
        value, option = [value], [option]
    assert conforms(value, {"const": option})


def test_long_lists_of_options_tire_the_check() -> None:
    """An answer of many items against many options is left after a bounded number of comparisons."""
    assert conforms([4_999] * 100_000 + [-1], {"items": {"enum": list(range(5_000))}})
    assert not conforms([4_999, -1], {"items": {"enum": list(range(5_000))}})
