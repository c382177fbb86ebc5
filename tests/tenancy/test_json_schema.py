"""Pieces of schemas say what readers accept."""

from jsonschema import Draft202012Validator

from tenancy.json_schema import Schema, described, named, nullable, requires, table

TEXT: Schema = {"type": "string", "minLength": 1}
CHOICE: Schema = {"anyOf": [{"type": "integer"}, {"enum": ["off"]}]}


def accepts(schema: Schema, value: object) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


def test_an_empty_value_is_as_if_it_were_absent() -> None:
    """Whatever else may stand there."""
    for schema, right, wrong in ((TEXT, "x", ""), (CHOICE, "off", "on"), ({"enum": ["a"]}, "a", "b")):
        for held in (schema, described(schema, "words")):
            assert [accepts(nullable(held), value) for value in (right, None, wrong)] == [True, True, False]
    assert nullable(described(CHOICE, "words"))["description"] == "words"


def test_a_table_knows_its_keys() -> None:
    """What it needs must be there, and not be empty."""
    schema = table({"a": TEXT, "b": CHOICE}, required=("a",))
    assert accepts(schema, {"a": "x", "b": None})
    rejected: list[object] = [{}, {"a": None}, {"a": "x", "c": 1}, []]
    assert not any(accepts(schema, value) for value in rejected)


def test_names_lead_to_entries() -> None:
    """Which may say nothing."""
    schema = named(table({"a": TEXT}), {"maxLength": 2})
    assert accepts(schema, {"x": {"a": "y"}, "y": None, "z": {}})
    assert not accepts(schema, {"xyz": {}})


def test_something_must_be_stated() -> None:
    """An empty value says nothing."""
    assert [accepts(requires("a"), value) for value in ({"a": 1}, {"a": None}, {})] == [True, False, False]
