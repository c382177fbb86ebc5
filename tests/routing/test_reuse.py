"""What displacing costs, learned from how old hits are."""

from math import log

import pytest

from routing.reuse import MEMORY, Reuse
from routing.warmth import WarmIndex
from tests.routing.prompts import prompt_of


def test_hits_on_what_would_go_soon_tell_what_displacing_costs() -> None:
    """A half is a doubling of age, and hits come about evenly by doublings."""
    reuse = Reuse()
    reuse.observe(100.0, 30.0)
    assert reuse.share == pytest.approx(30.0 / (log(2) * 100.0))


def test_a_warm_prompt_alone_teaches_nothing() -> None:
    """No token was computed, so none was displaced."""
    reuse = Reuse()
    reuse.observe(0.0, 80.0)
    assert reuse.share == 0.0


def test_what_was_learned_fades_when_caches_have_room_again() -> None:
    """Pods were added: within a few memories displacing is as good as free."""
    reuse = Reuse()
    reuse.observe(100.0, 100.0)
    for _ in range(5 * int(MEMORY)):
        reuse.observe(100.0, 0.0)
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


def test_hits_on_what_was_just_used_would_be_kept_anyway() -> None:
    """Only the older half of what an engine holds tells what it would lose by forgetting sooner."""
    index = WarmIndex()
    index.resize(0, 100)
    for number in range(100):
        for _ in range(2):
            index.computed(index.put(0, prompt_of(f"{number:04}")))
    assert index.reuse.share < 0.1
