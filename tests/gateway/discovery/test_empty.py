"""Sources that find no pods are reported once, with what to check."""

import pytest

from gateway.discovery.aggregator import DEFAULT_EMPTY_HINT, EMPTY_HINTS, EmptySources


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("dns:vllm.example:8000", EMPTY_HINTS["dns"]),
        ("kubernetes:inference", EMPTY_HINTS["kubernetes"]),
        ("other", DEFAULT_EMPTY_HINT),
    ],
)
def test_each_kind_has_its_fix(name: str, fix: str) -> None:
    """By the beginning of a source's name."""
    assert EmptySources().hint_for(name, is_empty=True) == fix


def test_only_changes_are_reported() -> None:
    """Once while it stays empty, and again after it has found pods; each source by itself."""
    empty = EmptySources()
    assert empty.hint_for("file", is_empty=True)
    assert not empty.hint_for("file", is_empty=True)
    assert empty.hint_for("redis", is_empty=True)
    assert not empty.hint_for("file", is_empty=False)
    assert empty.hint_for("file", is_empty=True)
