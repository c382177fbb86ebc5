"""The paged cache: every block is in one place, and the right one goes first."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulator.paged_cache import PagedCache


class Holders(RuleBasedStateMachine):
    """Sequences that come and go over one small cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedCache(12)
        self.sequences: list[tuple[list[int], int]] = []

    @rule(conversation=st.integers(0, 2), length=st.integers(1, 6))
    def come(self, conversation: int, length: int) -> None:
        """A chain is looked up, acquired as far as it is there, and computed for the rest."""
        chain = [100 * conversation + index for index in range(length)]
        hits, idle = self.cache.match(chain)
        if length - hits + idle > self.cache.available:
            return
        held = chain[:hits]
        self.cache.acquire(held)
        self.cache.take(length - hits)
        held += [block for block in chain[hits:] if self.cache.name(block)]
        self.sequences.append((held, length - len(held)))

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 100), answered=st.integers(0, 3))
    def go(self, which: int, answered: int) -> None:
        """It leaves, some of its anonymous blocks with content."""
        held, anonymous = self.sequences.pop(which % len(self.sequences))
        named = [1000 + index for index in range(min(answered, anonymous))]
        self.cache.retire(named, anonymous - len(named))
        self.cache.release(held)

    @rule()
    def forget(self) -> None:
        """What nobody holds is dropped."""
        self.cache.forget_idle()
        assert 1000 not in self.cache

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        """Counted over all states; what is used is what the sequences hold, shared blocks once."""
        self.cache.audit()
        shared = {block for held, _ in self.sequences for block in held}
        assert self.cache.used == len(shared) + sum(anonymous for _, anonymous in self.sequences)
        assert all(block in self.cache for block in shared)


TestHolders = Holders.TestCase


def test_more_than_there_is_cannot_be_taken() -> None:
    """The cache refuses rather than going below zero."""
    cache = PagedCache(2)
    cache.take(2)
    with pytest.raises(ValueError, match="1 blocks wanted, 0 available"):
        cache.take(1)


def test_blank_blocks_go_before_cached_ones() -> None:
    """Content is dropped only when nothing else is left, oldest first, tail first."""
    cache = PagedCache(4)
    cache.take(3)
    for block in (1, 2, 3):
        cache.name(block)
    cache.release([1, 2, 3])
    cache.take(1)
    assert cache.match([1, 2, 3]) == (3, 3)
    cache.take(1)
    assert cache.match([1, 2, 3]) == (2, 2)


def test_content_computed_twice_is_kept_once_and_counts_as_used_lately() -> None:
    """The duplicate turns blank, the one that was there moves to the end of the queue."""
    cache = PagedCache(3)
    cache.take(2)
    cache.retire([1], 0)
    cache.retire([2], 0)
    cache.take(1)
    cache.retire([1], 0)
    cache.take(2)
    assert 1 in cache
    assert 2 not in cache


def test_an_unsound_cache_is_noticed() -> None:
    """The audit fails when a block is lost."""
    cache = PagedCache(3)
    cache.take(1)
    cache.total = 4
    with pytest.raises(AssertionError, match="1 anonymous"):
        cache.audit()
