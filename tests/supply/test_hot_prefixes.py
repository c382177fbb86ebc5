"""What is shared by many becomes hot; what one conversation continues does not; memory is bounded."""

from __future__ import annotations

from routing.blocks import cut_prompt
from supply.hot_prefixes import MEMORY_S, HotPrefixes

SYSTEM = b"You are a careful assistant. " * 100


def test_a_shared_beginning_is_hot_from_its_third_use() -> None:
    """The first use is no reuse, and one reuse may be chance; the prefix ends where the prompts part."""
    prefixes = HotPrefixes()
    found = [prefixes.observe(cut_prompt(SYSTEM + b"%d" % number * 900, 1), 1.0) for number in range(4)]
    assert found[:2] == [None, None]
    assert found[2] is not None
    shared = cut_prompt(SYSTEM, 1).blocks
    assert found[2].key == shared[found[2].blocks - 1]
    assert len(shared) - found[2].blocks <= 1
    assert found[3] is not None
    assert found[3].uses == 3.0


def test_a_conversation_that_only_grows_is_not_hot() -> None:
    """Each turn ends elsewhere, and others do not share it."""
    prefixes, text = HotPrefixes(), b"Turn 0. " * 50
    for turn in range(20):
        assert prefixes.observe(cut_prompt(text, 1), float(turn)) is None
        text += b"And turn %d. " % turn * 50


def test_uses_fade() -> None:
    """After the memory's time less than half of them is left."""
    prefixes = HotPrefixes()
    for number in range(5):
        hot = prefixes.observe(cut_prompt(SYSTEM + b"%d" % number * 900, 1), 0.0)
    assert hot is not None
    assert prefixes.uses_of(hot.key, MEMORY_S) < hot.uses / 2
    assert prefixes.uses_of(0, 0.0) == 0.0


def test_equal_texts_under_other_salts_are_other_prefixes() -> None:
    """The seed keeps models and trust domains apart."""
    prefixes = HotPrefixes()
    assert all(prefixes.observe(cut_prompt(SYSTEM, seed), 0.0) is None for seed in range(9))


def test_memory_is_bounded() -> None:
    """Prompts that differ push out what was used longest ago."""
    prefixes = HotPrefixes(max_prefixes=3, max_blocks=200)
    for number in range(300):
        for _ in range(3):
            prefixes.observe(cut_prompt(b"%d" % number + SYSTEM, 1), float(number))
    assert len(prefixes) <= 3
