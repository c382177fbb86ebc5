"""Exact warmth, held against a small engine that keeps blocks as vLLM does."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from routing.precise.precise_index import MAX_PENDING, NOTHING_CACHED, CachedPrefix, PreciseIndex
from routing.precise.token_chains import BlockHashes, TokenPrompt, chain_root, pack_tokens
from tests.routing.kv_model import ModelEngine, Running

BLOCK = 2


def ends_of(tokens: Sequence[int], salt: str = "", adapter: str = "") -> BlockHashes:
    return BlockHashes(TokenPrompt(pack_tokens(tokens), chain_root(adapter, salt)))


def held(index: PreciseIndex, tokens: Sequence[int], engine: str = "a", **identity: str) -> int:
    return index.lookup(ends_of(tokens, **identity)).get(engine, NOTHING_CACHED).tokens


def stored(names: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> BlockStored:
    size = len(tokens) // len(names)
    return BlockStored([*names], parent, tokens, size, medium="GPU", **more)


# Few tokens, so that prompts often begin alike and are often computed twice.
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=11)
salts = st.sampled_from(["", "", "s"])
adapters = st.sampled_from(["", "", "l"])


class TwoEngines(RuleBasedStateMachine):
    """Anything that can happen on two engines with tiny caches; the index must know what each would reuse."""

    running: Bundle[tuple[str, Running]] = Bundle("running")

    @initialize(blocks=st.integers(3, 9))
    def start(self, blocks: int) -> None:
        self.index = PreciseIndex()
        self.engines = {"a": ModelEngine(blocks, BLOCK, secret=1), "b": ModelEngine(blocks + 3, BLOCK, secret=2)}
        for name in self.engines:
            self.index.add_engine(name)
        self.requested: list[tuple[list[int], str, str]] = []

    @rule(target=running, name=st.sampled_from("ab"), tokens=tokens, salt=salts, adapter=adapters, blind=st.booleans())
    def begin(self, name: str, tokens: list[int], salt: str, adapter: str, *, blind: bool) -> tuple[str, Running]:
        self.requested.append((tokens, salt, adapter))
        request = self.engines[name].begin(tokens, salt, adapter, blind=blind)
        return name, request or Running([], "", "", [], [])

    @rule(one=running, more=st.lists(st.integers(0, 1), max_size=4))
    def decode(self, one: tuple[str, Running], more: list[int]) -> None:
        for token in more:
            if one[1].blocks:
                self.engines[one[0]].decode(one[1], token)
                self.requested.append((list(one[1].tokens), one[1].salt, one[1].adapter))

    @rule(one=consumes(running))
    def end(self, one: tuple[str, Running]) -> None:
        self.engines[one[0]].end(one[1])
        one[1].blocks.clear()

    @rule(name=st.sampled_from("ab"))
    def reset(self, name: str) -> None:
        self.engines[name].reset()

    @rule(name=st.sampled_from("ab"))
    def restart(self, name: str) -> None:
        if not self.engines[name].users:
            self.engines[name] = ModelEngine(self.engines[name].blocks, BLOCK, secret=self.engines[name].secret + 7)
            self.index.remove_engine(name)
            self.index.add_engine(name, BLOCK)

    @invariant()
    def knows_what_each_would_reuse(self) -> None:
        for name, engine in self.engines.items():
            self.index.apply(name, engine.reported())
        for requested, salt, adapter in self.requested[-12:]:
            found = self.index.lookup(ends_of([*requested, 9], salt, adapter))
            for name, engine in self.engines.items():
                assert found.get(name, NOTHING_CACHED).tokens == engine.hit_tokens([*requested, 9], salt, adapter)

    def teardown(self) -> None:
        for name in getattr(self, "engines", ()):
            self.index.remove_engine(name)
        if hasattr(self, "index"):
            self.index._masks.sweep(1 << 20)
            assert not self.index._masks.held
            assert not self.index._masks.pending


TestTwoEngines = TwoEngines.TestCase
TestTwoEngines.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_engines_own_names_of_blocks_mean_nothing() -> None:
    """Two engines that hash differently hold the same prompt; one that hashes alike but holds other tokens does not."""
    index = PreciseIndex()
    for name in "abc":
        index.add_engine(name)
    index.apply("a", [stored([11, 12], [1, 2, 3, 4])])
    index.apply("b", [stored([901, 902], [1, 2, 3, 4])])
    index.apply("c", [stored([11, 12], [5, 6, 7, 8])])
    found = index.lookup(ends_of([1, 2, 3, 4, 5]))
    assert found == {"a": CachedPrefix(4), "b": CachedPrefix(4)}


def test_the_last_token_is_never_warm() -> None:
    """A prompt that is held in full still computes its last token, so its last whole block counts as cold."""
    index = PreciseIndex()
    index.add_engine("a")
    index.apply("a", [stored([1, 2], [1, 2, 3, 4])])
    assert held(index, [1, 2, 3, 4]) == 2
    assert held(index, [1, 2, 3, 4, 5]) == 4
    assert held(index, [1]) == 0


def test_a_block_reported_before_its_parent_waits_for_it() -> None:
    """Events of a chain in any order end in the same, also when a waiting block has been removed meanwhile."""
    index = PreciseIndex()
    index.add_engine("a", 2)
    index.apply("a", [stored([3], [5, 6], parent=2), stored([2, 8], [3, 4, 9, 9], parent=1)])
    assert held(index, [1, 2, 3, 4, 5, 6, 7]) == 0
    index.apply("a", [BlockRemoved([8], medium="GPU"), stored([1], [1, 2])])
    assert held(index, [1, 2, 3, 4, 5, 6, 7]) == 6
    assert held(index, [1, 2, 3, 4, 9, 9, 7]) == 4
    assert index.engines["a"].count.orphaned == 3


def test_waiting_blocks_are_bounded() -> None:
    """Orphans whose parents never come are given up, oldest first, and counted."""
    index = PreciseIndex()
    index.add_engine("a", 1)
    for name in range(1 << 15):
        index.apply("a", [stored([name], [1], parent=-1 - name)])
    followed = index.engines["a"]
    assert len(followed._waiting) == 1 << 14
    assert followed.count.dropped == 1 << 14
    assert len(followed) == 0


def test_a_cache_beyond_the_bound_is_followed_so_far() -> None:
    """What does not fit is counted and missed; what fits stays right."""
    index = PreciseIndex(max_blocks=2)
    index.add_engine("a")
    index.apply("a", [stored([1, 2, 3], [1, 1, 2, 2, 3, 3])])
    assert held(index, [1, 1, 2, 2, 3, 3, 4]) == 4
    assert index.engines["a"].count.dropped == 1
    index.apply("a", [BlockRemoved([2]), stored([4], [7, 7])])
    assert held(index, [7, 7, 1]) == 2


def test_clearing_is_a_new_generation_and_old_bits_are_swept() -> None:
    """A cleared cache holds nothing at once, whatever it held; its old marks go little by little."""
    index = PreciseIndex()
    index.add_engine("a")
    index.add_engine("b")
    prompt = list(range(4000))
    for name in "ab":
        index.apply(name, [stored(list(range(2000)), prompt)])
    index.apply("a", [AllBlocksCleared()])
    found = index.lookup(ends_of([*prompt, 1]))
    assert found == {"b": CachedPrefix(4000)}
    index.apply("a", [stored([1], [0, 1])])
    for _ in range(10):
        index.apply("a", [BlockRemoved([77])])
    assert held(index, [0, 1, 2]) == 2
    assert not index._masks._stale
    assert len(index) == 2000


def test_media_and_pictures_belong_to_what_a_block_is() -> None:
    """Equal tokens with another picture, salt or adapter are another prompt; pictures never match text."""
    index = PreciseIndex()
    index.add_engine("a")
    picture = stored([1, 2], [7, 7, 7, 7], extra_keys=[[["cat", 0]], None])
    other = stored([3, 4], [7, 7, 7, 7], extra_keys=[[["dog", 0]], None])
    index.apply("a", [picture, other])
    assert held(index, [7, 7, 7, 7, 1]) == 0
    assert len(index) == 4
    index.apply("a", [stored([5], [7, 7], extra_keys=[["lo", "salt"]], lora_name="lo")])
    assert held(index, [7, 7, 1]) == 0
    assert held(index, [7, 7, 1], salt="salt") == 0
    assert held(index, [7, 7, 1], salt="salt", adapter="lo") == 2


def test_blocks_of_different_sizes_end_at_the_same_links() -> None:
    """Engines of one model may cut blocks of 16, 32 and 48 tokens: each is warm in its own blocks."""
    index = PreciseIndex()
    prompt = [token % 97 for token in range(200)]
    for name, size in (("a", 16), ("b", 32), ("c", 48), ("d", 24)):
        index.add_engine(name)
        index.apply(name, [stored(list(range(200 // size)), prompt[: 200 // size * size])])
    found = index.lookup(ends_of(prompt))
    assert {name: one.tokens for name, one in found.items()} == {"a": 192, "b": 192, "c": 192, "d": 192}


def test_a_pending_prompt_counts_until_it_is_withdrawn() -> None:
    """A sibling finds what is on its way; when the promise goes, only what events have told stays."""
    index = PreciseIndex()
    index.add_engine("a", 2)
    index.add_pending("t1", "a", ends_of([1, 2, 3, 4, 5]))
    index.add_pending("t2", "a", ends_of([1, 2, 3]))
    index.add_pending("t2", "a", ends_of([1, 2, 3]))
    assert held(index, [1, 2, 3, 4, 9, 9]) == 4
    index.apply("a", [stored([1], [1, 2])])
    index.remove_pending("t1")
    index.remove_pending("t1")
    assert held(index, [1, 2, 3, 4, 9, 9]) == 2
    index.apply("a", [AllBlocksCleared()])
    assert held(index, [1, 2, 3, 4, 9, 9]) == 2
    index.remove_pending("t2")
    assert held(index, [1, 2, 3, 4, 9, 9]) == 0
    assert not index._masks.pending


def test_what_was_computed_counts_until_its_events_come() -> None:
    """They come a little after the answer; from then on they alone say what stands there."""
    index = PreciseIndex()
    index.add_engine("a", 2)
    index.apply("a", [stored([1], [1, 2])])
    index.add_pending("t", "a", ends_of([1, 2, 3, 4, 5, 6]))
    assert index.prefill_done("t")
    index.remove_pending("t")
    assert held(index, [1, 2, 3, 4, 5, 6, 9]) == 6
    index.apply("a", [stored([2], [3, 4], parent=1)])
    index.apply("a", [BlockRemoved([2], medium="GPU")])
    assert held(index, [1, 2, 3, 4, 5, 6, 9]) == 2
    index.apply("a", [stored([2], [3, 4], parent=1)])
    assert held(index, [1, 2, 3, 4, 5, 6, 9]) == 6
    index.expire("t")
    index.expire("t")
    assert held(index, [1, 2, 3, 4, 5, 6, 9]) == 4
    assert not index._masks.pending


def test_what_events_had_reported_by_then_is_not_waited_for() -> None:
    """Also where it was told and is gone again: a long answer may outlive the blocks of its own prompt."""
    index = PreciseIndex()
    index.add_engine("a", 2)
    index.add_pending("t", "a", ends_of([1, 2, 3, 4]))
    index.apply("a", [stored([1, 2], [1, 2, 3, 4]), BlockRemoved([2], medium="GPU")])
    assert held(index, [1, 2, 3, 4, 9]) == 4
    assert not index.prefill_done("t")
    assert not index.prefill_done("t")
    assert held(index, [1, 2, 3, 4, 9]) == 2
    assert not index._masks.pending


def test_a_cleared_cache_does_not_clear_what_is_due() -> None:
    """An engine tells that it was cleared only with its next step: what was computed since is told after it."""
    index = PreciseIndex()
    index.add_engine("a", 2)
    index.apply("a", [stored([1], [7, 7])])
    index.add_pending("t", "a", ends_of([1, 2, 3]))
    assert index.prefill_done("t")
    index.apply("a", [AllBlocksCleared()])
    assert (held(index, [7, 7, 9]), held(index, [1, 2, 9])) == (0, 2)
    index.remove_engine("a")
    index.add_engine("a", 2)
    assert held(index, [1, 2, 9]) == 0
    index.expire("t")


def test_what_is_due_is_bounded() -> None:
    """Beyond the bound the oldest is waited for no longer."""
    index = PreciseIndex()
    index.add_engine("a", 1)
    for number in range(MAX_PENDING + 1):
        index.add_pending(str(number), "a", ends_of([number]))
        assert index.prefill_done(str(number))
    assert (held(index, [0, 9]), held(index, [1, 9])) == (0, 1)


def test_a_pending_prompt_does_not_outlive_its_engine() -> None:
    """An engine that is followed anew owes nothing that was promised to the one before it."""
    index = PreciseIndex()
    index.add_engine("a", 2)
    index.add_pending("t", "a", ends_of([1, 2, 3]))
    index.remove_engine("a")
    index.add_engine("a", 2)
    assert held(index, [1, 2, 3]) == 0
    index.remove_pending("t")


def test_only_what_every_group_can_go_on_from_is_warm() -> None:
    """A recurrent group keeps few states: full attention alone makes nothing warm beyond the last of them."""
    index = PreciseIndex()
    index.add_engine("a")
    prompt = list(range(1, 13))
    full = stored(list(range(1, 7)), prompt, group_idx=0, kv_cache_spec_kind="full_attention")
    state = BlockStored([4], None, prompt, 2, medium="GPU", group_idx=1, kv_cache_spec_kind="mamba")
    index.apply("a", [state, full])
    assert held(index, [*prompt, 1]) == 8
    index.apply("a", [BlockRemoved([4], medium="GPU", group_idx=1)])
    assert held(index, [*prompt, 1]) == 0


def test_a_sliding_group_needs_its_last_window_only() -> None:
    """Blocks before the window may be gone, one inside it may not."""
    index = PreciseIndex()
    index.add_engine("a")
    prompt = list(range(1, 13))
    sliding: dict[str, Any] = {
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 4,
    }
    full = stored(list(range(1, 7)), prompt, group_idx=0, kv_cache_spec_kind="full_attention")
    index.apply("a", [full, stored(list(range(1, 7)), prompt, **sliding)])
    assert held(index, [*prompt, 1]) == 12
    index.apply("a", [BlockRemoved([name], medium="GPU", group_idx=1) for name in (1, 2, 3, 4)])
    assert held(index, [*prompt, 1]) == 12
    index.apply("a", [BlockRemoved([5], medium="GPU", group_idx=1)])
    assert held(index, [*prompt, 1]) == 0


def test_slower_media_go_on_where_the_accelerator_ends() -> None:
    """Offloaded blocks are told by name only; they count where they follow on, and are told apart."""
    index = PreciseIndex()
    index.add_engine("a")
    prompt = list(range(1, 13))
    index.apply("a", [stored(list(range(1, 7)), prompt)])
    index.apply("a", [BlockStored([name], None, [], 0, medium="CPU") for name in (2, 4, 6)])
    index.apply("a", [BlockRemoved([name], medium="GPU") for name in (6, 5, 4, 3)])
    found = index.lookup(ends_of([*prompt, 1]))["a"]
    assert found == CachedPrefix(12, {"CPU": 8})
    index.apply("a", [BlockRemoved([4], medium="CPU")])
    assert index.lookup(ends_of([*prompt, 1]))["a"].tokens == 4
    assert len(index.engines["a"]) == 3


def test_what_cannot_be_read_is_counted() -> None:
    """Odd events harm nothing but the count."""
    index = PreciseIndex()
    index.add_engine("a", 16)
    bad = [
        BlockStored([1], None, [], 0),
        stored([1], [-1] * 16),
        stored([2], [1, 2, 3]),
        BlockStored([3], 77, [1], 16),
    ]
    index.apply("a", bad)
    assert held(index, [1] * 40) == 0
    index.apply("a", [stored([9], [1] * 16)])
    assert held(index, [1] * 40) == 16
