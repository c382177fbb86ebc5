"""Masks of shelves: what is put and promised is there, what is taken is gone, bits come back clean."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routing.precise.block_bitmap import BlockBitmap, BlockRefcounts

STEPS = ["put", "take", "promise", "withdraw", "expect", "expect no more", "renew", "hand over"]
moves = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 4)))


class Bags:
    """What stands on three shelves, as bags of copies: the model that the masks are held against."""

    def __init__(self) -> None:
        self.masks = BlockBitmap()
        self.bitmaps = [self.masks.new_refcounts() for _ in range(3)]
        self.held = [Counter[int]() for _ in self.bitmaps]
        self.promised = [Counter[int]() for _ in self.bitmaps]
        self.reported = [set[int]() for _ in self.bitmaps]
        self.due = [set[int]() for _ in self.bitmaps]

    def step(self, what: str, at: int, link: int) -> None:
        if what in ("put", "take"):
            self.move(what, at, link)
        elif what in ("promise", "withdraw", "expect", "expect no more"):
            self.promise(what, at, link)
        else:
            self.replace(at, keeps=what == "hand over")
        self.reported[at] = {link for link in self.reported[at] if self.promised[at][link]}

    def move(self, what: str, at: int, link: int) -> None:
        if what == "put":
            self.masks.put(self.bitmaps[at], link)
            self.held[at][link] += 1
            self.due[at].discard(link)
            self.reported[at].add(link)
        elif self.held[at][link]:
            self.masks.remove(self.bitmaps[at], link)
            self.held[at][link] -= 1

    def promise(self, what: str, at: int, link: int) -> None:
        masks, refcounts, promised = self.masks, self.bitmaps[at], self.promised[at]
        if what == "promise":
            masks.add_pending(refcounts, [link])
            promised[link] += 1
        elif what == "expect no more":
            masks.expire(refcounts, [link], "another")
            masks.expire(refcounts, [link], "who")
            self.due[at].discard(link)
        elif promised[link] and what == "withdraw":
            masks.remove_pending(refcounts, [link])
            promised[link] -= 1
        elif promised[link]:
            due = {link} - self.reported[at] - set(+self.held[at])
            assert masks.mark_computed(refcounts, [link], "who") == list(due)
            promised[link] -= 1
            self.due[at] |= due

    def replace(self, at: int, *, keeps: bool) -> None:
        old, self.bitmaps[at] = self.bitmaps[at], self.masks.new_refcounts()
        if keeps:
            self.masks.transfer_pending(old, self.bitmaps[at])
        else:
            self.promised[at], self.reported[at], self.due[at] = Counter(), set(), set()
        self.masks.discard([old], list(self.held[at]))
        self.held[at] = Counter()


@given(moves, st.integers(1, 5))
def test_masks_report_what_stands_where(steps: list[tuple[str, int, int]], swept: int) -> None:
    """Against a bag of copies per shelf; shelves are thrown away or replaced now and then, and swept slowly."""
    bags = Bags()
    masks = bags.masks
    for what, at, link in steps:
        bags.step(what, at, link)
        masks.sweep(swept)
        for place, one in enumerate(bags.bitmaps):
            held, coming = +bags.held[place], +bags.promised[place]
            seen = [bool(mask & one.bit) for mask in masks.masks_of(range(5))]
            assert seen == [link in held or link in coming or link in bags.due[place] for link in range(5)]
            assert [masks.is_held(one, link) for link in range(5)] == [link in held for link in range(5)]


def test_bits_are_used_again() -> None:
    """An engine that is cleared a thousand times does not widen the masks."""
    masks = BlockBitmap()
    refcounts = masks.new_refcounts()
    for _ in range(1000):
        masks.put(refcounts, 7)
        masks.discard([refcounts], [7])
        refcounts = masks.new_refcounts()
        masks.sweep(10)
    assert refcounts.bit < 8
    assert len(masks) == 0


def test_a_bitmap_is_a_small_thing() -> None:
    """There may be thousands, so it has no dict of its own."""
    assert not hasattr(BlockRefcounts(1), "__dict__")
