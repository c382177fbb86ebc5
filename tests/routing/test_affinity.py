"""A bounded memory of where something was last."""

from hypothesis import given
from hypothesis import strategies as st

from routing.affinity import RecentMap


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3))), st.integers(1, 5))
def test_the_newest_entries_are_kept(writes: list[tuple[int, int]], most: int) -> None:
    """As many as there is room for, each with its last value; the oldest are forgotten."""
    seen: RecentMap[int, int] = RecentMap(most)
    expected: dict[int, int] = {}
    for key, value in writes:
        seen.put(key, value)
        expected.pop(key, None)
        expected[key] = value
    kept = dict(list(expected.items())[-most:])
    assert {key: seen.get(key) for key in range(10)} == {key: kept.get(key) for key in range(10)}
    assert len(seen) == len(kept)


def test_a_value_can_be_forgotten() -> None:
    """All keys that point to something that is gone."""
    seen: RecentMap[str, int] = RecentMap(9)
    for key, value in (("a", 1), ("b", 2), ("c", 1)):
        seen.put(key, value)
    seen.remove_value(1)
    assert [seen.get(key) for key in "abc"] == [None, 2, None]
    seen.remove_value(7)
    assert len(seen) == 1
