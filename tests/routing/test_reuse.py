"""What displacing costs, learned from how old hits are."""

from math import log

import pytest

from routing.reuse import MEMORY, Reuse
from routing.warmth import WarmIndex
from tests.routing.prompts import prompt_of


def test_hits_on_what_would_go_soon_tell_what_displacing_costs() -> None:
    """Of the older half only: what was used a moment ago would be kept anyway."""
    reuse = Reuse()
    reuse.observe(100.0, [(30.0, 11), (50.0, 19)], turn=20, oldest_turn=10)
    assert reuse.share == pytest.approx(30.0 / (log(2) * 100.0))


def test_where_there_is_room_nothing_is_displaced() -> None:
    """Hits of any age cost nothing to keep."""
    reuse = Reuse()
    reuse.observe(100.0, [(80.0, 1)], turn=20, oldest_turn=None)
    assert reuse.share == 0.0


def test_a_warm_prompt_alone_teaches_nothing() -> None:
    """No token was computed, so none was displaced."""
    reuse = Reuse()
    reuse.observe(0.0, [(80.0, 1)], turn=20, oldest_turn=0)
    assert reuse.share == 0.0


def test_what_was_learned_fades_when_caches_have_room_again() -> None:
    """Pods were added: within a few memories displacing is as good as free."""
    reuse = Reuse()
    reuse.observe(100.0, [(100.0, 1)], turn=20, oldest_turn=0)
    for turn in range(5 * int(MEMORY)):
        reuse.observe(100.0, [], turn=turn, oldest_turn=None)
    assert 0.0 < reuse.share < 0.001


def play(capacity: int) -> float:
    """Four prompts by turns on one engine, and what the index has learned of its cache."""
    index = WarmIndex()
    index.resize(0, capacity)
    for letter in "abcd" * 50:
        index.computed(index.put(0, prompt_of(letter * 4)))
    return index.reuse.share


def test_an_index_learns_it_from_what_it_puts_on_engines() -> None:
    """A cache that just holds what comes round would lose all of it; one with room to spare loses nothing."""
    size = prompt_of("aaaa").size
    assert play(4 * size) > 1.0
    assert play(40 * size) == 0.0


def test_a_cache_in_which_nothing_comes_round_loses_nothing() -> None:
    """Prompts that are never asked for again may be displaced."""
    index = WarmIndex()
    index.resize(0, 100)
    for number in range(200):
        index.computed(index.put(0, prompt_of(f"{number:04}")))
    assert index.reuse.share < 0.1
