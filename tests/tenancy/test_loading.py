"""YAML is read within bounds: aliases, numbers and nesting cannot make much of little."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tenancy.loading import DEEPEST, NODES_BY_ALIAS, compose_yaml, load_yaml


def bomb(levels: int, times: int = 9) -> str:
    """Lists of aliases of lists of aliases: `times ** levels` values."""
    lines = [f"a0: &a0 [{', '.join(['x'] * times)}]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * times)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [5, 9, 40])
def test_aliases_that_multiply_are_refused_at_their_place(levels: int) -> None:
    """However much they would make."""
    for read in (load_yaml, compose_yaml):
        with pytest.raises(yaml.MarkedYAMLError, match="repeat too much") as refused:
            read(bomb(levels))
        mark = refused.value.problem_mark
        assert mark is not None
        assert mark.line < 6


def test_merges_that_multiply_are_refused() -> None:
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


def test_what_holds_itself_is_refused() -> None:
    """As a list in itself, or as a mapping that is merged into itself."""
    for text in ("a: &a [*a]", "a: &a {b: [1, {c: *a}]}", "&a {<<: *a}"):
        with pytest.raises(yaml.MarkedYAMLError, match="within what it names"):
            load_yaml(text)


def test_depth_is_bounded() -> None:
    """At the bracket that is too much, whatever comes behind it."""
    assert load_yaml("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(yaml.MarkedYAMLError, match="nested too deeply") as refused:
        load_yaml("[" * 100_000)
    assert refused.value.problem_mark is not None
    assert refused.value.problem_mark.column == DEEPEST


def test_aliases_of_everyday_use_are_read() -> None:
    """Two thousand tenants that share their words, and the same value in several places."""
    text = "usual: &usual {rpm: 60, tpm: 1000, models: &models [a, b]}\n"
    text += "".join(f"t{at}: {{<<: *usual, models: *models}}\n" for at in range(2000))
    found = load_yaml(text)
    assert found["t1999"] == {"rpm": 60, "tpm": 1000, "models": ["a", "b"]}


@pytest.mark.parametrize("number", ["9" * 5000, "1" + ":1" * 5000, "0x" + "f" * 5000, "1." + "0" * 5000])
def test_a_number_without_end_is_refused_at_its_place(number: str) -> None:
    """PyYAML takes quadratic time for some, and Python rejects others without naming a place."""
    with pytest.raises(yaml.MarkedYAMLError, match="at most 100 characters") as refused:
        load_yaml(f"a: 1\nb: {number}\n")
    assert refused.value.problem_mark is not None
    assert refused.value.problem_mark.line == 1


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
