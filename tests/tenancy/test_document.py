"""A document is read into typed values, and every fault in it is told with its path."""

from dataclasses import dataclass

import pytest

from tenancy.document import (
    Invalid,
    Parse,
    Table,
    Wrong,
    flag,
    not_negative,
    number,
    one_of,
    positive,
    read_document,
    read_fields,
    text,
    whole,
)


def table(source: str, **variables: str) -> Table:
    return read_document(source, variables)


def faults(source: Table) -> list[str]:
    return [str(fault) for fault in source.faults]


def test_values_are_read_by_type_and_absent_ones_are_their_defaults() -> None:
    """What stands there is parsed; what does not, or stands empty, is the default."""
    root = table("name: x\nrate: 2e-7\ncount: 3\nempty:\n")
    assert root.get("name", text, "-") == "x"
    assert root.get("rate", number, 0.0) == 2e-7
    assert root.get("count", whole, 0) == 3
    assert root.get("empty", text, "usual") == "usual"
    assert root.get("absent", text, "usual") == "usual"
    root.close()
    assert faults(root) == []


def test_every_fault_is_told_with_its_path() -> None:
    """Wrong values, missing ones and unknown keys at every depth, all in one reading."""
    root = table("a: {b: [1, x, 2.5], c: yes}\nlist: [{n: 1}, {nn: 2}, 3]\nnam: z\n")
    inner = root.table("a")
    assert inner
    assert inner.each("b", whole) == (1,)
    inner.get("c", text, "")
    for entry in root.tables("list"):
        entry.need("n", whole, 0)
        entry.close()
    root.get("name", text, "")
    root.close()
    assert faults(root) == [
        "a.b[1]: must be a number, not 'x'",
        "a.b[2]: must be a whole number, not 2.5",
        "a.c: must be a text, not true or false (quote it)",
        "list[2]: must be a mapping, not a number",
        "list[1].n: is missing",
        "list[1].nn: unknown key (did you mean `n`?)",
        "nam: unknown key (did you mean `name`?)",
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a: 1\nb: {c: 1\n", "line 3, column 1: expected ',' or '}'"),
        ("a: 1\na: 2\n", "line 2, column 1: `a` stands twice"),
        ("x: {b: 1, b: 1}\n", "line 1, column 11: `b` stands twice"),
        ("a: !!python/object/apply:os.system [x]\n", "line 1, column 4: could not determine a constructor"),
        ("a: \x01\n", "not YAML: unacceptable character"),
    ],
)
def test_what_is_no_yaml_is_refused_with_its_place(source: str, words: str) -> None:
    """Syntax, keys that stand twice, and tags that would run code."""
    with pytest.raises(Invalid) as refused:
        table(source)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize("source", ["[1, 2]", "word", "7"])
def test_a_document_must_be_a_mapping(source: str) -> None:
    """A list or a word at the top is a fault, not a crash."""
    assert faults(table(source))[0].startswith("must be a mapping, not ")


def test_an_empty_document_is_an_empty_mapping() -> None:
    """An empty file says nothing, and that is no fault."""
    root = table("")
    root.close()
    assert faults(root) == []


def test_keys_that_yaml_reads_as_something_else_are_faults() -> None:
    """`on:` and `1:` are no texts in YAML 1.1."""
    assert faults(table("on: 1\n2: 3\n")) == [
        "True: a key must be text (quote it)",
        "2: a key must be text (quote it)",
    ]


def test_variables_are_put_in_place() -> None:
    """Names, defaults, several in one text, and a dollar that is meant; never in keys."""
    root = table("a: ${X}\nb: x-${X}-${Y:-why}\nc: $${X} costs $5\nd: [{e: '${X}'}]\nf: ${EMPTY:-}\n", X="1")
    assert root.get("a", whole, 0) == 1
    assert root.get("b", text, "") == "x-1-why"
    assert root.get("c", text, "") == "${X} costs $5"
    assert root.tables("d")[0].get("e", text, "") == "1"
    root.get("f", text, "-")
    assert faults(root) == ["f: must not be empty"]


def test_a_variable_that_is_not_set_is_a_fault() -> None:
    """The path says where it is wanted; an empty variable counts as not set."""
    assert faults(table("a: [x, '${NOPE} ${X}']\n", X="")) == [
        "a[1]: the variable NOPE is not set",
        "a[1]: the variable X is not set",
    ]


def test_merged_mappings_are_allowed() -> None:
    """YAML's `<<` is no key that stands twice."""
    root = table("a: &a {x: 1}\nb: {<<: *a, x: 2}\n")
    b = root.table("b")
    assert b
    assert b.get("x", whole, 0) == 2


@pytest.mark.parametrize(
    ("parse", "value", "words"),
    [
        (text, "", "must not be empty"),
        (text, 5, "must be a text, not a number (quote it)"),
        (text, None, "must be a text, not nothing (quote it)"),
        (flag, "yes", "must be true or false, not a text"),
        (number, True, "must be a number, not true or false"),
        (number, "many", "must be a number, not 'many'"),
        (number, float("nan"), "must be finite"),
        (number, ".inf", "must be a number, not '.inf'"),
        (number, "inf", "must be finite"),
        (number, [], "must be a number, not a list"),
        (number, 10**400, f"must be a number, not {10**400}"),
        (whole, 1.5, "must be a whole number, not 1.5"),
        (positive(whole), 0, "must be above 0"),
        (not_negative, -1e-9, "must not be below 0"),
        (one_of(("warm", "cold")), "warn", "`warn` is none of warm, cold (did you mean `warm`?)"),
        (one_of(("warm", "cold")), "xyz", "`xyz` is none of warm, cold"),
    ],
)
def test_parsers_say_what_is_wrong(parse: Parse[object], value: object, words: str) -> None:
    """Each names the rule that is broken."""
    with pytest.raises(Wrong) as refused:
        parse(value)
    assert str(refused.value) == words


@dataclass(frozen=True)
class Knobs:
    size: int = 4
    rate: float = 0.5
    on: bool = True
    name: str = "x"


def test_a_dataclass_is_its_own_schema() -> None:
    """Fields are keys, defaults give the types, and what is no field is unknown."""
    assert read_fields(table("{size: 5, 'on': false}"), Knobs()) == Knobs(size=5, on=False)
    root = table("{size: 1.5, rates: 1, name: 3}")
    assert read_fields(root, Knobs()) == Knobs()
    assert faults(root) == [
        "size: must be a whole number, not 1.5",
        "name: must be a text, not a number (quote it)",
        "rates: unknown key (did you mean `rate`?)",
    ]
    root = table("{size: 0}")
    read_fields(root, Knobs(), above_zero=True)
    assert faults(root) == ["size: must be above 0"]
