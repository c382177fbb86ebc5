"""Masks of shelves: what is put and promised is there, what is taken is gone, bits come back clean."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routing.shelves import Masks, Shelf

moves = st.lists(
    st.tuples(st.sampled_from(["put", "take", "promise", "withdraw", "renew"]), st.integers(0, 2), st.integers(0, 4))
)


@given(moves, st.integers(1, 5))
def test_masks_say_what_stands_where(steps: list[tuple[str, int, int]], swept: int) -> None:
    """Against a bag of copies per shelf; shelves are thrown away now and then, and swept slowly."""
    masks = Masks()
    shelves = [masks.new_shelf() for _ in range(3)]
    held = [Counter[int]() for _ in shelves]
    promised = [Counter[int]() for _ in shelves]
    for what, at, link in steps:
        shelf = shelves[at]
        if what == "put":
            masks.put(shelf, link)
            held[at][link] += 1
        elif what == "take" and held[at][link]:
            masks.take(shelf, link)
            held[at][link] -= 1
        elif what == "promise":
            masks.promise(shelf, [link])
            promised[at][link] += 1
        elif what == "withdraw" and promised[at][link]:
            masks.withdraw(shelf, [link])
            promised[at][link] -= 1
        elif what == "renew":
            masks.discard([shelf], list(held[at]))
            shelves[at] = masks.new_shelf()
            held[at], promised[at] = Counter(), Counter()
        masks.sweep(swept)
        for place, one in enumerate(shelves):
            seen = masks.masks_of(range(5))
            there = [bool(mask & one.bit) for mask in seen]
            assert there == [bool(held[place][link] or promised[place][link]) for link in range(5)]
            assert [masks.is_held(one, link) for link in range(5)] == [bool(held[place][link]) for link in range(5)]


def test_bits_are_used_again() -> None:
    """An engine that is cleared a thousand times does not widen the masks."""
    masks = Masks()
    shelf = masks.new_shelf()
    for _ in range(1000):
        masks.put(shelf, 7)
        masks.discard([shelf], [7])
        shelf = masks.new_shelf()
        masks.sweep(10)
    assert shelf.bit < 8
    assert len(masks) == 0


def test_a_shelf_is_a_small_thing() -> None:
    """There may be thousands, so it has no dict of its own."""
    assert not hasattr(Shelf(1), "__dict__")
