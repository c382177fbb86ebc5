"""YAML is read within bounds: aliases, numbers and nesting cannot make much of little."""

from dataclasses import dataclass

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tenancy.document import (
    MAX_DEPTH,
    NODES_BY_ALIAS,
    DocumentTable,
    InvalidDocument,
    InvalidValue,
    Parse,
    compose_yaml,
    flag,
    integer,
    load_yaml,
    not_negative,
    number,
    one_of,
    positive,
    read_document,
    read_fields,
    text,
)


def bomb(levels: int, times: int = 9) -> str:
    """Lists of aliases of lists of aliases: `times ** levels` values."""
    lines = [f"a0: &a0 [{', '.join(['x'] * times)}]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * times)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [5, 9, 40])
def test_aliases_that_multiply_are_rejected_at_their_place(levels: int) -> None:
    """However much they would make."""
    for read in (load_yaml, compose_yaml):
        with pytest.raises(yaml.MarkedYAMLError, match="repeat too much") as rejected:
            read(bomb(levels))
        mark = rejected.value.problem_mark
        assert mark is not None
        assert mark.line < 6


def test_merges_that_multiply_are_rejected() -> None:
    """`<<` repeats what it names as an alias in a list does."""
    lines = ["a0: &a0 {" + ", ".join(f"k{at}: x" for at in range(50)) + "}"]
    lines += [f"a{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 50)}]}}" for at in range(1, 5)]
    with pytest.raises(yaml.MarkedYAMLError, match="repeat too much"):
        load_yaml("\n".join(lines))


def test_a_long_text_counts_each_time() -> None:
    """An alias of a long scalar costs as much as its characters."""
    text = f"a: &a {'x' * 60_000}\nb: [{', '.join(['*a'] * 1000)}]"
    with pytest.raises(yaml.MarkedYAMLError, match="repeat too much"):
        load_yaml(text)


def test_what_holds_itself_is_rejected() -> None:
    """As a list in itself, or as a mapping that is merged into itself."""
    for held in ("a: &a [*a]", "a: &a {b: [1, {c: *a}]}", "&a {<<: *a}"):
        with pytest.raises(yaml.MarkedYAMLError, match="within what it names"):
            load_yaml(held)


def test_depth_is_bounded() -> None:
    """At the bracket that is too much, whatever comes behind it."""
    assert load_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(yaml.MarkedYAMLError, match="nested too deeply") as rejected:
        load_yaml("[" * 100_000)
    assert rejected.value.problem_mark is not None
    assert rejected.value.problem_mark.column == MAX_DEPTH


def test_aliases_of_everyday_use_are_read() -> None:
    """Two thousand tenants that share their words, and the same value in several places."""
    text = "usual: &usual {rpm: 60, tpm: 1000, models: &models [a, b]}\n"
    text += "".join(f"t{at}: {{<<: *usual, models: *models}}\n" for at in range(2000))
    found = load_yaml(text)
    assert found["t1999"] == {"rpm": 60, "tpm": 1000, "models": ["a", "b"]}


@pytest.mark.parametrize("number", ["9" * 5000, "1" + ":1" * 5000, "0x" + "f" * 5000, "1." + "0" * 5000])
def test_a_number_without_end_is_rejected_at_its_place(number: str) -> None:
    """PyYAML takes quadratic time for some, and Python rejects others without naming a place."""
    with pytest.raises(yaml.MarkedYAMLError, match="at most 100 characters") as rejected:
        load_yaml(f"a: 1\nb: {number}\n")
    assert rejected.value.problem_mark is not None
    assert rejected.value.problem_mark.line == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    )
)
def test_what_is_in_bounds_is_read_as_the_safe_loader_reads_it(value: object) -> None:
    """Every document without aliases that PyYAML writes."""
    text = yaml.safe_dump(value)
    assert load_yaml(text) == yaml.safe_load(text)


def test_the_bound_is_as_stated() -> None:
    """A list of n repeated m times is m (n + 1) nodes; a text of c characters may have 10,000 + 4 c of them."""

    def listed(times: int) -> str:
        return f"a: &a [{', '.join(['x'] * 99)}]\nb: [{', '.join(['*a'] * times)}]"

    last = max(times for times in range(1000) if 100 * times <= NODES_BY_ALIAS + 4 * len(listed(times)))
    assert last > NODES_BY_ALIAS // 100
    assert load_yaml(listed(last))["b"][-1] == ["x"] * 99
    with pytest.raises(yaml.MarkedYAMLError, match="repeat too much"):
        load_yaml(listed(last + 1))


def table(source: str, **variables: str) -> DocumentTable:
    return read_document(source, variables)


def faults(source: DocumentTable) -> list[str]:
    return [str(fault) for fault in source.errors]


def test_values_are_read_by_type_and_absent_ones_are_their_defaults() -> None:
    """What stands there is parsed; what does not, or stands empty, is the default."""
    root = table("name: x\nrate: 2e-7\ncount: 3\nempty:\n")
    assert root.get("name", text, "-") == "x"
    assert root.get("rate", number, 0.0) == 2e-7
    assert root.get("count", integer, 0) == 3
    assert root.get("empty", text, "usual") == "usual"
    assert root.get("absent", text, "usual") == "usual"
    root.close()
    assert faults(root) == []


def test_every_fault_is_reported_with_its_path() -> None:
    """Wrong values, missing ones and unknown keys at every depth, all in one reading."""
    root = table("a: {b: [1, x, 2.5], c: yes}\nlist: [{n: 1}, {nn: 2}, 3]\nnam: z\n")
    inner = root.table("a")
    assert inner
    assert inner.each("b", integer) == (1,)
    inner.get("c", text, "")
    for entry in root.tables("list"):
        entry.get_required("n", integer, 0)
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
        ("a: 1\na: 2\n", "line 2, column 1: duplicate key `a`"),
        ("x: {b: 1, b: 1}\n", "line 1, column 11: duplicate key `b`"),
        ("a: !!python/object/apply:os.system [x]\n", "line 1, column 4: could not determine a constructor"),
        ("a: \x01\n", "not YAML: unacceptable character"),
    ],
)
def test_what_is_no_yaml_is_rejected_with_its_place(source: str, words: str) -> None:
    """Syntax, keys that stand twice, and tags that would run code."""
    with pytest.raises(InvalidDocument) as rejected:
        table(source)
    assert str(rejected.value).startswith(words)


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
    assert root.get("a", integer, 0) == 1
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
    assert b.get("x", integer, 0) == 2


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
        (integer, 1.5, "must be a whole number, not 1.5"),
        (positive(integer), 0, "must be above 0"),
        (not_negative, -1e-9, "must not be below 0"),
        (one_of(("warm", "cold")), "warn", "`warn` is none of warm, cold (did you mean `warm`?)"),
        (one_of(("warm", "cold")), "xyz", "`xyz` is none of warm, cold"),
    ],
)
def test_parsers_report_what_is_wrong(parse: Parse[object], value: object, words: str) -> None:
    """Each names the rule that is broken."""
    with pytest.raises(InvalidValue) as rejected:
        parse(value)
    assert str(rejected.value) == words


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
