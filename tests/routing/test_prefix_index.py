"""What displacing costs, learned from how old hits are."""

from collections.abc import Callable, Iterator
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from routing.blocks import PackedPrompt, Prompt, cut_prompt, pack_prompt
from routing.prefix_index import (
    PREDICTION_SLACK,
    REUSE_MEMORY,
    CacheInsertion,
    EngineRadixCache,
    PrefixIndex,
    ReuseRate,
    cached_and_work,
    last_block_of_prefix,
)
from tests.routing.engines import MODEL, ask, router_of, serve
from tests.routing.prompts import ENDS, prompt_of, prompts


def test_hits_on_what_would_go_soon_report_what_displacing_costs() -> None:
    """A half is a doubling of age, and hits come about evenly by doublings."""
    reuse = ReuseRate()
    reuse.observe(100.0, 30.0)
    assert reuse.share == pytest.approx(30.0 / (log(2) * 100.0))


def test_a_warm_prompt_alone_teaches_nothing() -> None:
    """No token was computed, so none was displaced."""
    reuse = ReuseRate()
    reuse.observe(0.0, 80.0)
    assert reuse.share == 0.0


def test_what_was_learned_fades_when_caches_have_room_again() -> None:
    """Pods were added: within a few memories displacing is as good as free."""
    reuse = ReuseRate()
    reuse.observe(100.0, 100.0)
    for _ in range(5 * int(REUSE_MEMORY)):
        reuse.observe(100.0, 0.0)
    assert 0.0 < reuse.share < 0.001


def play(capacity: int) -> float:
    """Four prompts by turns on one engine, and what the index has learned of its cache."""
    index = PrefixIndex()
    index.resize(0, capacity)
    for letter in "abcd" * 50:
        index.prefill_done(index.insert(0, prompt_of(letter * 4)))
    return index.reuse.share


def test_an_index_learns_it_from_what_it_puts_on_engines() -> None:
    """A cache that just holds what comes round would lose all of it; one with room to spare loses nothing."""
    size = prompt_of("aaaa").size
    assert play(4 * size) > 1.0
    assert play(40 * size) == 0.0


def test_a_cache_in_which_nothing_comes_round_loses_nothing() -> None:
    """Prompts that are never asked for again may be displaced."""
    index = PrefixIndex()
    index.resize(0, 100)
    for number in range(200):
        index.prefill_done(index.insert(0, prompt_of(f"{number:04}")))
    assert index.reuse.share < 0.1


def test_hits_on_what_was_just_used_would_be_kept_anyway() -> None:
    """Only the older half of what an engine holds tells what it would lose by forgetting sooner."""
    index = PrefixIndex()
    index.resize(0, 100)
    for number in range(100):
        for _ in range(2):
            index.prefill_done(index.insert(0, prompt_of(f"{number:04}")))
    assert index.reuse.share < 0.1


UNBOUNDED = 1 << 30


class NaiveCache:
    """What a shadow cache should do, block by block."""

    def __init__(self, capacity: int, max_blocks: int) -> None:
        self.capacity = capacity
        self.max_blocks = max_blocks
        self.turn_of: dict[int, int] = {}
        self.weight_of: dict[int, int] = {}
        self.parent_of: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(self.weight_of[block] for block in self.turn_of)

    def use(self, prompt: Prompt, turn: int) -> list[int]:
        """The turns that had last used the blocks that were there."""
        earlier = []
        for block in prompt.blocks:
            if block not in self.turn_of:
                break
            earlier.append(self.turn_of[block])
        for index, block in reversed(list(enumerate(prompt.blocks))):
            self.turn_of.pop(block, None)
            self.turn_of[block] = turn
            self.weight_of[block] = prompt.ends[index] - (prompt.ends[index - 1] if index else 0)
            self.parent_of[block] = prompt.blocks[index - 1] if index else 0
        return earlier

    def shrink(self) -> list[int]:
        return list(self._drop_while(lambda: self.used > self.capacity or len(self.turn_of) > self.max_blocks))

    def forget_before(self, turn: int) -> list[int]:
        return list(self._drop_while(lambda: next(iter(self.turn_of.values())) < turn))

    def retract(self, prompt: Prompt, turn: int, warm_blocks: int) -> list[int]:
        dropped: list[int] = []
        for block in reversed(prompt.blocks[warm_blocks:]):
            is_needed = any(self.parent_of[held] == block for held in self.turn_of)
            if block in self.turn_of and (is_needed or self.turn_of[block] != turn):
                break
            if self.turn_of.pop(block, None) is not None:
                dropped.append(block)
        return dropped

    def _drop_while(self, is_so: Callable[[], bool]) -> Iterator[int]:
        while self.turn_of and is_so():
            block = next(iter(self.turn_of))
            del self.turn_of[block]
            yield block


operations = st.lists(
    st.tuples(st.sampled_from(["use", "use", "use", "again"]), prompts)
    | st.tuples(st.just("retract"), st.integers(0, 30))
    | st.tuples(st.just("forget_before"), st.integers(0, 30))
    | st.tuples(st.just("shrink to"), st.integers(0, 60)),
    max_size=30,
)


class Pair:
    """The same operations on both caches."""

    def __init__(self, max_blocks: int) -> None:
        self.real = EngineRadixCache(UNBOUNDED, max_blocks)
        self.naive = NaiveCache(UNBOUNDED, max_blocks)
        self.used: list[tuple[Prompt, int]] = []

    def use(self, prompt: Prompt, *, again: bool) -> None:
        turn = max(1, len(self.used)) if again else len(self.used) + 1
        found, earlier = self.real.insert(prompt, turn), self.naive.use(prompt, turn)
        assert found.cached_blocks == len(earlier)
        assert turns_of_blocks(found.earlier) == earlier
        if not again:
            self.used.append((prompt, found.cached_blocks))
        assert sorted(self.real.evict()) == sorted(self.naive.shrink())

    def retract(self, turn: int) -> None:
        if turn < len(self.used):
            prompt, warm_blocks = self.used[turn]
            dropped = self.real.retract(prompt.blocks, turn + 1, warm_blocks)
            assert sorted(dropped) == sorted(self.naive.retract(prompt, turn + 1, warm_blocks))

    def shrink_to(self, capacity: int) -> None:
        self.real.capacity = self.naive.capacity = capacity
        assert sorted(self.real.evict()) == sorted(self.naive.shrink())

    def check(self) -> None:
        assert list(self.real) == list(self.naive.turn_of)
        assert self.real.used == self.naive.used <= self.real.capacity
        assert len(self.real) == len(self.naive.turn_of) <= self.naive.max_blocks


def turns_of_blocks(earlier: tuple[tuple[int, int], ...]) -> list[int]:
    """Stretches as one turn per block."""
    turns: list[int] = []
    for end, turn in earlier:
        turns += [turn] * (end - len(turns))
    return turns


@given(operations, st.sampled_from([UNBOUNDED, 12, 3]))
def test_it_does_what_a_naive_cache_does(operations: list[tuple[str, object]], max_blocks: int) -> None:
    """Whatever is used, retracted, forgotten or squeezed: the same blocks are held and forgotten, in the same order."""
    pair = Pair(max_blocks)
    for name, operand in operations:
        if isinstance(operand, Prompt):
            pair.use(operand, again=name == "again")
        elif isinstance(operand, int) and name == "retract":
            pair.retract(operand)
        elif isinstance(operand, int) and name == "forget_before":
            assert sorted(pair.real.forget_before(operand)) == sorted(pair.naive.forget_before(operand))
        elif isinstance(operand, int):
            pair.shrink_to(operand)
        pair.check()


@given(operations)
def test_whoever_holds_a_block_holds_all_before_it(operations: list[tuple[str, object]]) -> None:
    """No operation leaves a block without its parent: the walk down a prompt relies on it."""
    pair = Pair(UNBOUNDED)
    pair.shrink_to(40)
    for name, operand in operations:
        if isinstance(operand, Prompt):
            pair.use(operand, again=name == "again")
        elif isinstance(operand, int) and name == "retract":
            pair.retract(operand)
        held = set(pair.real)
        assert all(pair.naive.parent_of[block] in held or not pair.naive.parent_of[block] for block in held)


def test_the_head_of_a_prompt_is_forgotten_last() -> None:
    """As in the engine: what many prompts share stands longest."""
    cache = EngineRadixCache(UNBOUNDED, UNBOUNDED)
    prompt = prompt_of("abcd")
    cache.insert(prompt, 1)
    cache.capacity = ENDS[1]
    assert set(cache.evict()) == set(prompt.blocks[2:])
    assert list(cache) == [prompt.blocks[1], prompt.blocks[0]]


def test_a_prompt_larger_than_the_cache_keeps_its_head() -> None:
    """An engine cannot hold it whole either."""
    cache = EngineRadixCache(ENDS[2], UNBOUNDED)
    prompt = prompt_of("abcdef")
    cache.insert(prompt, 1)
    cache.evict()
    assert set(cache) == set(prompt.blocks[:3])
    assert cache.used == ENDS[2]


@pytest.mark.parametrize("capacity", [0, UNBOUNDED])
def test_the_empty_prompt_is_nothing(capacity: int) -> None:
    """Using it holds nothing and finds nothing."""
    cache = EngineRadixCache(capacity, UNBOUNDED)
    use = cache.insert(prompt_of(""), 1)
    assert (use.cached_blocks, use.earlier, len(cache), cache.used) == (0, (), 0, 0)
    assert cache.evict() == cache.forget_before(9) == cache.retract((), 1, 0) == []


def test_what_others_stand_on_is_not_retracted() -> None:
    """Answers of an earlier request have grown behind a prompt that is then taken back: their beginning has to stay."""
    cache = EngineRadixCache(UNBOUNDED, UNBOUNDED)
    cache.insert(prompt_of("ab"), 1)
    requested = prompt_of("abc")
    warm_blocks = cache.insert(requested, 2).cached_blocks
    for grown in ("abcd", "abce"):
        cache.insert(prompt_of(grown), 2)
    assert cache.retract(requested.blocks, 2, warm_blocks) == []
    held = {block for grown in ("abcd", "abce") for block in prompt_of(grown).blocks}
    assert set(cache) == held
    assert set(cache.forget_before(3)) == held


@given(st.lists(prompts, max_size=8), prompts)
def test_the_depth_is_how_many_blocks_are_held(used: list[Prompt], requested: Prompt) -> None:
    """Wherever a prompt leaves the tree: at a run's end, in its middle, at the root."""
    cache = EngineRadixCache(UNBOUNDED, UNBOUNDED)
    for turn, prompt in enumerate(used):
        cache.insert(prompt, turn + 1)
    held = set(cache)
    assert cache.depth(requested.blocks) == sum(block in held for block in requested.blocks)


def test_what_goes_next_is_reported_when_the_cache_is_full() -> None:
    """When it was last used; nothing where there is room."""
    shadow = EngineRadixCache(10, 100)
    assert shadow.next_evicted_turn is None
    shadow.insert(prompt_of("aaaa"), 1)
    assert shadow.next_evicted_turn is None
    shadow.insert(prompt_of("bbbbb"), 2)
    assert shadow.next_evicted_turn == 1


SLOTS = range(3)
EVERYONE = 0b111


def warm(index: PrefixIndex, prompt: Prompt, among: int = EVERYONE) -> dict[int, int]:
    """Slot to warm size, of those that hold some."""
    found: dict[int, int] = {}
    for mask, size in index.match(prompt, among):
        for slot in SLOTS:
            if mask >> slot & 1:
                assert slot not in found
                found[slot] = size
    return found


def held_by(index: PrefixIndex, slot: int) -> set[int]:
    engine = index._engines.get(slot)
    return set(engine.cache) if engine else set()


class AnyHistory(RuleBasedStateMachine):
    """Everything that can happen to an index, in any order."""

    traces: Bundle[tuple[CacheInsertion, str]] = Bundle("traces")

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_blocks_per_engine=15)
        for slot in SLOTS:
            self.index.resize(slot, 30)

    @rule(target=traces, slot=st.sampled_from(SLOTS), letters=st.text("ab", max_size=8))
    def put(self, slot: int, letters: str) -> tuple[CacheInsertion, str]:
        return self.index.insert(slot, prompt_of(letters)), letters

    @rule(put=traces)
    def computed(self, put: tuple[CacheInsertion, str]) -> None:
        self.index.prefill_done(put[0])

    @rule(put=traces)
    def retract(self, put: tuple[CacheInsertion, str]) -> None:
        self.index.retract(put[0])

    @rule(put=traces, answer=st.text("ab", max_size=4))
    def grow(self, put: tuple[CacheInsertion, str], answer: str) -> None:
        self.index.extend(put[0], prompt_of(put[1] + answer))

    @rule(put=traces, real=st.floats(0, ENDS[-1]))
    def correct(self, put: tuple[CacheInsertion, str], real: float) -> None:
        self.index.correct(put[0], real)

    @rule(slot=st.sampled_from(SLOTS), capacity=st.integers(0, 60))
    def resize(self, slot: int, capacity: int) -> None:
        self.index.resize(slot, capacity)

    @rule(slot=st.sampled_from(SLOTS))
    def forget(self, slot: int) -> None:
        self.index.clear(slot)
        assert self.index.size_of(slot) == 0
        assert not any(mask >> slot & 1 for mask in self.index._holders.values())

    @invariant()
    def holders_and_shadows_agree(self) -> None:
        """Every bit is in exactly that engine's shadow, and the other way round."""
        holders = self.index._holders
        assert 0 not in holders.values()
        assert max(holders.values(), default=0) <= EVERYONE
        for slot in SLOTS:
            assert held_by(self.index, slot) == {block for block, mask in holders.items() if mask >> slot & 1}

    @invariant()
    def nobody_holds_more_than_fits(self) -> None:
        """Capacity, in size and in blocks: what prompts displace goes when they have been computed, or never were."""
        for engine in self.index._engines.values():
            assert 0 <= engine.cache.capacity <= engine.nominal_capacity
            if not engine.unfinished:
                assert 0 <= engine.cache.used <= engine.cache.capacity
                assert len(engine.cache) <= 15

    @invariant()
    def walks_tell_the_longest_prefix_held(self) -> None:
        """One walk answers for all engines what a look at each of them would."""
        for letters in ("abababab", "aaaabbbb", "bbbbbbbb"):
            prompt = prompt_of(letters)
            expected = {}
            for slot in SLOTS:
                held = held_by(self.index, slot)
                depth = next((at for at, block in enumerate(prompt.blocks) if block not in held), len(prompt.blocks))
                if depth:
                    expected[slot] = ENDS[depth - 1]
            assert warm(self.index, prompt) == expected
            assert warm(self.index, prompt, 0b010) == {slot: size for slot, size in expected.items() if slot == 1}


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=40)


def unpacked_by(index: PrefixIndex, slot: int) -> set[int]:
    """The blocks of an engine that a look-up finds without unpacking."""
    engine = index._engines.get(slot)
    return {block for run in engine.cache._oldest_first for block in run.blocks} if engine else set()


class PackedHistory(RuleBasedStateMachine):
    """The same history in two indexes: one receives prompts of other gateways packed, the other as if they were its
    own.
    """

    traces: Bundle[tuple[CacheInsertion, CacheInsertion, str]] = Bundle("traces")

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.plain = PrefixIndex(max_blocks_per_engine=15), PrefixIndex(max_blocks_per_engine=15)
        self.both = self.packed, self.plain
        for index in self.both:
            for slot in SLOTS:
                index.resize(slot, 30)

    @rule(
        target=traces,
        slot=st.sampled_from(SLOTS),
        letters=st.text("ab", max_size=8),
        is_remote=st.booleans(),
        learns=st.booleans(),
    )
    def put(self, slot: int, letters: str, is_remote: bool, learns: bool) -> tuple[CacheInsertion, CacheInsertion, str]:
        prompt = prompt_of(letters)
        plain = self.plain.insert(slot, prompt)
        packed = (
            self.packed.insert_packed(slot, pack_prompt(prompt), learns=learns)
            if is_remote
            else self.packed.insert(slot, prompt)
        )
        assert packed.found.cached_blocks == plain.found.cached_blocks
        if learns or not is_remote:
            assert turns_of_blocks(packed.found.earlier) == turns_of_blocks(plain.found.earlier)
            assert packed.is_pending == plain.is_pending
        return packed, plain, letters

    @rule(put=traces)
    def computed(self, put: tuple[CacheInsertion, CacheInsertion, str]) -> None:
        self.packed.prefill_done(put[0])
        self.plain.prefill_done(put[1])

    @rule(put=traces)
    def retract(self, put: tuple[CacheInsertion, CacheInsertion, str]) -> None:
        self.packed.retract(put[0])
        self.plain.retract(put[1])

    @rule(put=traces, answer=st.text("ab", max_size=4))
    def grow(self, put: tuple[CacheInsertion, CacheInsertion, str], answer: str) -> None:
        grown = prompt_of(put[2] + answer)
        self.packed.extend(put[0], pack_prompt(grown) if isinstance(put[0].prompt, PackedPrompt) else grown)
        self.plain.extend(put[1], grown)

    @rule(put=traces, real=st.floats(0, ENDS[-1]))
    def correct(self, put: tuple[CacheInsertion, CacheInsertion, str], real: float) -> None:
        if put[0].found.earlier or not put[1].found.earlier:
            assert self.packed.correct(put[0], real) == self.plain.correct(put[1], real)

    @rule(slot=st.sampled_from(SLOTS), capacity=st.integers(0, 60))
    def resize(self, slot: int, capacity: int) -> None:
        for index in self.both:
            index.resize(slot, capacity)

    @rule(slot=st.sampled_from(SLOTS))
    def forget(self, slot: int) -> None:
        for index in self.both:
            index.clear(slot)

    @rule(letters=st.text("ab", max_size=8), among=st.integers(0, EVERYONE))
    def look_up(self, letters: str, among: int) -> None:
        """Whatever is packed, every look-up answers what it would if nothing were."""
        prompt = prompt_of(letters)
        assert warm(self.packed, prompt, among) == warm(self.plain, prompt, among)

    @invariant()
    def both_hold_the_same(self) -> None:
        """The same blocks, forgotten in the same order."""
        for slot in SLOTS:
            caches = [index._engines[slot].cache if slot in index._engines else () for index in self.both]
            assert list(caches[0]) == list(caches[1])
            assert self.packed.size_of(slot) == self.plain.size_of(slot)

    @invariant()
    def blocks_are_packed_or_found(self) -> None:
        """The masks of holders are those of unpacked runs, and each packed run is in the table by its first block."""
        holders, table = self.packed._holders, self.packed._packed
        for slot in SLOTS:
            assert unpacked_by(self.packed, slot) == {block for block, mask in holders.items() if mask >> slot & 1}
            engine = self.packed._engines.get(slot)
            runs = engine.cache._oldest_first if engine else ()
            first_blocks = {run.first_block for run in runs if run.packed}
            assert first_blocks == {block for block, mask in table.items() if mask >> slot & 1}
        assert 0 not in table.values()


TestPackedHistory = PackedHistory.TestCase
TestPackedHistory.settings = settings(stateful_step_count=40)


def test_a_prompt_of_a_peer_is_unpacked_by_the_first_look_up_that_shares_it() -> None:
    """Not before, and not by a prompt that leaves before its own blocks begin."""
    index = PrefixIndex()
    index.resize(0, 1000)
    index.insert(0, prompt_of("ab"))
    index.insert_packed(0, pack_prompt(prompt_of("abaaaa")), learns=False)
    assert len(index) == 2
    assert warm(index, prompt_of("abbb")) == {0: ENDS[1]}
    assert len(index) == 2
    assert warm(index, prompt_of("abaab")) == {0: ENDS[3]}
    assert len(index) == 6
    assert not index._packed


@pytest.fixture
def index() -> PrefixIndex:
    index = PrefixIndex()
    for slot in SLOTS:
        index.resize(slot, 1000)
    return index


def test_a_prompt_is_warm_where_it_was_put(index: PrefixIndex) -> None:
    """There and nowhere else, from the moment it was put; a continuation is warm up to where it leaves."""
    index.insert(0, prompt_of("abc"))
    index.insert(1, prompt_of("ab"))
    assert warm(index, prompt_of("abcd")) == {0: ENDS[2], 1: ENDS[1]}
    assert warm(index, prompt_of("abd")) == {0: ENDS[1], 1: ENDS[1]}
    assert warm(index, prompt_of("b")) == warm(index, prompt_of("")) == {}
    assert len(index) == 3


def test_engines_that_leave_together_are_reported_together(index: PrefixIndex) -> None:
    """A system prompt that all hold costs one step of the walk, not one an engine."""
    for slot in SLOTS:
        index.insert(slot, prompt_of("aa"))
    index.insert(2, prompt_of("aab"))
    assert list(index.match(prompt_of("aaba"), EVERYONE)) == [(0b011, ENDS[1]), (0b100, ENDS[2])]


def test_what_was_never_computed_is_taken_back(index: PrefixIndex) -> None:
    """A request that fails before its first token promises nothing any more; what was warm before stays."""
    index.prefill_done(index.insert(0, prompt_of("ab")))
    trace = index.insert(0, prompt_of("abcd"))
    index.retract(trace)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[1]}
    index.retract(trace)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[1]}


def test_what_was_computed_is_not_taken_back(index: PrefixIndex) -> None:
    """After the first token the engine holds the prompt, however the request ends."""
    trace = index.insert(0, prompt_of("abcd"))
    index.prefill_done(trace)
    index.retract(trace)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[3]}


def test_what_a_later_request_shares_is_not_taken_back(index: PrefixIndex) -> None:
    """Two requests for one prompt: one fails, the other still brings the engine to hold it."""
    first, second = index.insert(0, prompt_of("abcd")), index.insert(0, prompt_of("abcd"))
    index.retract(first)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[3]}
    index.retract(second)
    index.retract(first)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[3]}


def test_an_answer_makes_its_conversation_warmer(index: PrefixIndex) -> None:
    """What was decoded is in the engine's cache too."""
    index.extend(index.insert(0, prompt_of("ab")), prompt_of("abcd"))
    assert warm(index, prompt_of("abcde")) == {0: ENDS[3]}


def test_nothing_from_before_a_reset_comes_back(index: PrefixIndex) -> None:
    """A pod that restarted holds nothing of what it was given before, whatever is learned of that later."""
    before = index.insert(0, prompt_of("ab"))
    index.clear(0)
    index.resize(0, 1000)
    index.insert(0, prompt_of("b"))
    index.extend(before, prompt_of("abcd"))
    assert not index.correct(before, 0)
    index.retract(before)
    index.prefill_done(before)
    assert warm(index, prompt_of("abcd")) == {}
    assert warm(index, prompt_of("b")) == {0: ENDS[0]}


def test_what_the_engine_forgot_is_forgotten(index: PrefixIndex) -> None:
    """Told that it reused less than believed, all that was last used no later is given up, and no more."""
    for letters in ("aaaa", "bbbb", "abab"):
        index.prefill_done(index.insert(0, prompt_of(letters)))
    index.prefill_done(index.insert(1, prompt_of("bbbb")))
    again = index.insert(0, prompt_of("bbbb"))
    assert index.correct(again, ENDS[1])
    # "bbbb" was lost in turn 2: what was last used in turn 1 is lost as well; turn 3 and what is computed now are not.
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[0]}
    assert warm(index, prompt_of("abab")) == {0: ENDS[3]}
    assert warm(index, prompt_of("bbbb")) == {0: ENDS[3], 1: ENDS[3]}


def test_a_shadow_too_large_shrinks_and_recovers(index: PrefixIndex) -> None:
    """Wrong promises make the shadow smaller than its engine says it is; kept ones let it grow back, and no further."""
    index.prefill_done(index.insert(0, prompt_of("aaaa")))
    shadow = index._engines[0].cache
    assert index.correct(index.insert(0, prompt_of("aaaa")), 0)
    assert shadow.capacity < 1000
    for _ in range(200):
        trace = index.insert(0, prompt_of("aaaa"))
        index.prefill_done(trace)
        assert not index.correct(trace, ENDS[3])
    assert shadow.capacity == 1000


def test_a_prompt_that_two_gave_up_does_not_overfill(index: PrefixIndex) -> None:
    """The second of two was told that the first one's blocks stood there; when both fail nothing exceeds the cache."""
    index.resize(0, ENDS[3])
    index.prefill_done(index.insert(0, prompt_of("bb")))
    first, second = index.insert(0, prompt_of("aaaa")), index.insert(0, prompt_of("aaaaa"))
    index.retract(first)
    index.retract(second)
    assert index.size_of(0) <= ENDS[3]


@pytest.mark.parametrize("reused", [ENDS[3], ENDS[3] * 1.5, ENDS[3] * (1 - PREDICTION_SLACK)])
def test_a_met_objective_changes_nothing(index: PrefixIndex, reused: float) -> None:
    """Bytes are not tokens: what is nearly what was promised is what was promised; more is no fault."""
    index.prefill_done(index.insert(0, prompt_of("aaaa")))
    assert not index.correct(index.insert(0, prompt_of("aaaa")), reused)
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[3]}


def test_nothing_guaranteed_is_nothing_to_correct(index: PrefixIndex) -> None:
    """A cold prompt that was reused all the same (by somebody else's doing) teaches nothing."""
    assert not index.correct(index.insert(0, prompt_of("aaaa")), ENDS[3])


def test_two_at_once_may_both_be_cold(index: PrefixIndex) -> None:
    """The second of two equal prompts finds the first one not yet computed: that is not forgetting."""
    index.insert(0, prompt_of("aaaa"))
    second = index.insert(0, prompt_of("aaaa"))
    assert not index.correct(second, 0)
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[3]}


def test_a_smaller_cache_forgets_at_once(index: PrefixIndex) -> None:
    """A pod that says it holds less is believed at once; saying the same again changes nothing."""
    index.prefill_done(index.insert(0, prompt_of("aaaa")))
    index.resize(0, 1000)
    assert index.size_of(0) == ENDS[3]
    index.resize(0, ENDS[1])
    assert index.size_of(0) == ENDS[1]
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[1]}


def test_an_engine_no_one_sized_holds_nothing() -> None:
    """Until its size is known an engine is not believed warm."""
    index = PrefixIndex()
    index.prefill_done(index.insert(5, prompt_of("aaaa")))
    assert list(index.match(prompt_of("aaaa"), 1 << 5)) == []
    assert index.size_of(5) == index.size_of(6) == 0
    index.clear(6)


def test_an_evicted_prompt_is_not_warm(index: PrefixIndex) -> None:
    """What no longer fits is forgotten, least recently used first, as in the engine."""
    index.resize(0, ENDS[3] + ENDS[3] - ENDS[0])
    for letters in ("aaaa", "bbbb", "aaaa", "abbb"):
        index.prefill_done(index.insert(0, prompt_of(letters)))
    assert warm(index, prompt_of("bbbb")) == {}
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[3]}
    assert warm(index, prompt_of("abbb")) == {0: ENDS[3]}


@given(st.binary(min_size=1, max_size=4000), st.binary(max_size=4000))
def test_real_prompts_are_warm_up_to_their_last_full_block(text: bytes, more: bytes) -> None:
    """With prompts cut from bytes: the next turn is warm for all that the first one covered in full blocks."""
    index = PrefixIndex()
    index.resize(0, 1 << 20)
    first = cut_prompt(text, 3)
    index.prefill_done(index.insert(0, first))
    expected = [(1, first.covered)] if first.covered else []
    assert list(index.match(cut_prompt(text + more, 3), 1)) == expected
    assert list(index.match(cut_prompt(text + more, 4), 1)) == []


def test_a_resize_keeps_what_corrections_taught() -> None:
    """A better ratio of bytes to tokens scales the cache; a change within the ratio's noise leaves it."""
    index = PrefixIndex()
    index.resize(0, 10_000)
    engine = index._engines[0]
    engine.cache.capacity = 8_000
    index.resize(0, 10_200)
    assert (engine.nominal_capacity, engine.cache.capacity) == (10_000, 8_000)
    index.resize(0, 5_000)
    assert (engine.nominal_capacity, engine.cache.capacity) == (5_000, 4_000)


def test_warm_tokens_are_complete_blocks_and_leave_something_to_compute() -> None:
    """Whoever holds all of a prompt computes its last block; whoever holds nothing, all of it."""
    router = router_of(2)
    placement = serve(router, ask())
    again = router._look(ask(), frozenset(), 1.0).candidates
    at = again.engines.index(placement.engine)
    assert again.warm_tokens[at] % 16 == 0
    assert 0 < again.warm_tokens[at] < again.prompt_tokens
    assert again.warm_tokens[1 - at] == 0
    assert again.prefill_work[1 - at] > again.prefill_work[at] > 0


def test_a_prefix_is_the_last_block_that_is_so_long() -> None:
    """By its end."""
    prompt = ask().prompt
    assert last_block_of_prefix(prompt, prompt.ends[3]) == prompt.blocks[3]
    assert callable(cached_and_work)
    assert MODEL


def test_many_unfinished_prompts_are_not_copied_into_each_insertion(index: PrefixIndex) -> None:
    """An insertion names the unfinished turns of its own prefix only, however many prompts wait on the engine."""
    for letter in "abcdefgh" * 50:
        index.insert(0, prompt_of(letter + "x"))
    assert index.insert(0, prompt_of("zz")).unfinished_turns == frozenset()
    shared = index.insert(0, prompt_of("axy"))
    assert shared.is_pending
    assert len(shared.unfinished_turns) <= 2
