"""What is shared by many becomes hot; what one conversation continues does not; memory is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


def test_unique_prompts_of_one_tenant_displace_no_prefix_of_another() -> None:
    """However many one sends between two uses by another, and whether or not it sends each of them twice."""
    prefixes = HotPrefixes(max_prefixes=20, max_blocks=1_000)
    hot = None
    for number in range(6):
        hot = prefixes.observe(cut_prompt(SYSTEM + b"%d" % number * 900, 1), 1.0, "small")
        for flood in range(400):
            for end in (b"", b"a" * 600, b"b" * 600)[: 1 + flood % 3]:
                prefixes.observe(cut_prompt(b"%d.%d " % (number, flood) * 400 + end, 1), 1.0, "loud")
    assert hot is not None
    assert hot.uses == 5.0
    assert len(prefixes) <= 20


def test_a_prompt_in_use_outlives_newer_ones_of_its_tenant() -> None:
    """It comes behind them each time its turn to be forgotten has come."""
    prefixes = HotPrefixes(max_blocks=1_000)
    for flood in range(100):
        hot = prefixes.observe(cut_prompt(SYSTEM, 1), 1.0, "a")
        prefixes.observe(cut_prompt(b"%d " % flood * 400, 1), 1.0, "a")
    assert hot is not None
    assert hot.uses == 99.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text("xyz", max_size=7)), max_size=60))
def test_what_is_held_fits_and_every_end_belongs_to_a_prompt(observed: list[tuple[str, str]]) -> None:
    """Whatever is shared, continued and repeated by whom."""
    prefixes = HotPrefixes(max_prefixes=5, max_blocks=12)
    for tenant, letters in observed:
        prompt = cut_prompt(b"".join(letter.encode() * 64 for letter in letters), 1)
        prefixes.observe(prompt, 1.0, tenant)
        assert len(prefixes._tree) <= max(12, len(prompt.blocks))
        assert len(prefixes) <= 5
        leaves = {run.blocks[-1] for run in prefixes._tree._oldest_first if not run.children}
        assert leaves <= prefixes._prompts.keys()


def test_memory_is_bounded() -> None:
    """Prompts that differ push out what was used longest ago."""
    prefixes = HotPrefixes(max_prefixes=3, max_blocks=200)
    for number in range(300):
        for _ in range(3):
            prefixes.observe(cut_prompt(b"%d" % number + SYSTEM, 1), float(number))
    assert len(prefixes) <= 3
