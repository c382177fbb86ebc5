"""A bounded memory of where something was last."""

from hypothesis import given
from hypothesis import strategies as st

from routing.affinity import LastSlots, RecentMap


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


WRITES = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 30), st.integers(0, 3)))


@given(WRITES, st.integers(1, 12))
def test_slots_of_names_are_those_written_last(writes: list[tuple[str | None, int, int]], room: int) -> None:
    """Whatever tenant owned the name before; never more than there is room for, and none of a slot that is gone."""
    seen, expected = LastSlots(room), dict[str, int]()
    for owner, number, slot in writes:
        seen.put(str(number), slot, owner)
        expected[str(number)] = slot
        assert seen.get(str(number)) == slot
        assert len(seen) <= room
    found = {name: seen.get(name) for name in expected}
    assert all(slot in (None, expected[name]) for name, slot in found.items())
    assert sum(slot is not None for slot in found.values()) == len(seen)
    seen.remove_value(1)
    assert 1 not in [seen.get(name) for name in expected]
    assert len(seen) == sum(seen.get(name) is not None for name in expected)


def test_names_of_a_tenant_without_number_push_out_none_of_another() -> None:
    """Its own oldest are forgotten; alone it may have all there is room for."""
    seen = LastSlots(1_000)
    for number in range(100):
        seen.put(f"plain/{number}", 1, "plain")
    for number in range(10_000):
        seen.put(f"odd/{number}", 2, "odd")
    assert all(seen.get(f"plain/{number}") == 1 for number in range(100))
    assert seen.get("odd/9999") == 2
    assert seen.get("odd/0") is None
    assert 880 < len(seen) <= 1_000
