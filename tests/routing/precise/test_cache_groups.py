"""How long a hit is: against a naive search over all lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, lcm

from hypothesis import given
from hypothesis import strategies as st

from routing.precise.cache_groups import count_leading_held, leading_hit_tokens

MOST = 24


@dataclass
class Held:
    kind: str
    window_tokens: int
    block_tokens: int
    held: Sequence[object]

    def can_go_on(self, tokens: int) -> bool:
        """Whether a sequence can go on from a prefix of so many tokens."""
        blocks = tokens // self.block_tokens
        if self.kind == "mamba":
            return bool(self.held[blocks - 1])
        needed = blocks
        if self.kind == "sliding_window":
            needed = min(blocks, ceil((self.window_tokens - 1) / self.block_tokens))
        return all(self.held[blocks - needed : blocks])


@st.composite
def groups(draw: st.DrawFn) -> Held:
    block = draw(st.sampled_from([2, 2, 4]))
    kind = draw(st.sampled_from(["full_attention", "mla_attention", "mamba", "sliding_window", "unheard_of"]))
    held = draw(st.lists(st.booleans() | st.just(value=True), min_size=MOST // block, max_size=MOST // block))
    return Held(kind, draw(st.integers(2, 9)), block, held)


@given(st.lists(groups(), min_size=1, max_size=3), st.integers(0, MOST))
def test_the_longest_hit_is_the_longest_that_all_can_go_on_from(each: list[Held], most: int) -> None:
    """No longer prefix would do, and this one does."""
    grain = lcm(*(group.block_tokens for group in each))
    expected = 0
    for tokens in range(grain, most + 1, grain):
        # Full attention must hold all of it; vLLM asks the others about the end only.
        if all(group.can_go_on(tokens) for group in each):
            expected = tokens
    assert leading_hit_tokens(each, most) == expected


def test_groups_that_reuse_no_prefix_do_not_matter() -> None:
    """Cross attention holds nothing of the prompt; alone it makes nothing warm."""
    cross = Held("cross_attention", 0, 2, [])
    full = Held("full_attention", 0, 2, [1, 1, 0, 1])
    assert leading_hit_tokens([cross, full], 8) == 4
    assert leading_hit_tokens([cross], 8) == 0


def test_a_run_ends_at_the_first_gap() -> None:
    """Or with what was looked at."""
    assert count_leading_held([1, 1, 0, 1], 4) == 2
    assert count_leading_held([1, 1, 0, 1], 1) == 1
    assert count_leading_held([1, 1], 4) == 2
