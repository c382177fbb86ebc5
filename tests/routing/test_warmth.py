"""The warm index: who holds which prefix, kept by what was sent, corrected by what engines tell."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from routing.blocks import Prompt, cut_prompt
from routing.warmth import SLACK, Trace, WarmIndex
from tests.routing.prompts import ENDS, prompt_of

SLOTS = range(3)
EVERYONE = 0b111


def warm(index: WarmIndex, prompt: Prompt, among: int = EVERYONE) -> dict[int, int]:
    """Slot to warm size, of those that hold some."""
    found: dict[int, int] = {}
    for mask, size in index.walk(prompt, among):
        for slot in SLOTS:
            if mask >> slot & 1:
                assert slot not in found
                found[slot] = size
    return found


def held_by(index: WarmIndex, slot: int) -> set[int]:
    engine = index._engines.get(slot)
    return set(engine.shadow) if engine else set()


class AnyHistory(RuleBasedStateMachine):
    """Everything that can happen to an index, in any order."""

    traces: Bundle[tuple[Trace, str]] = Bundle("traces")

    def __init__(self) -> None:
        super().__init__()
        self.index = WarmIndex(most_blocks_per_engine=15)
        for slot in SLOTS:
            self.index.resize(slot, 30)

    @rule(target=traces, slot=st.sampled_from(SLOTS), letters=st.text("ab", max_size=8))
    def put(self, slot: int, letters: str) -> tuple[Trace, str]:
        return self.index.put(slot, prompt_of(letters)), letters

    @rule(put=traces)
    def computed(self, put: tuple[Trace, str]) -> None:
        self.index.computed(put[0])

    @rule(put=traces)
    def retract(self, put: tuple[Trace, str]) -> None:
        self.index.retract(put[0])

    @rule(put=traces, answer=st.text("ab", max_size=4))
    def grow(self, put: tuple[Trace, str], answer: str) -> None:
        self.index.grow(put[0], prompt_of(put[1] + answer))

    @rule(put=traces, real=st.floats(0, ENDS[-1]))
    def correct(self, put: tuple[Trace, str], real: float) -> None:
        self.index.correct(put[0], real)

    @rule(slot=st.sampled_from(SLOTS), capacity=st.integers(0, 60))
    def resize(self, slot: int, capacity: int) -> None:
        self.index.resize(slot, capacity)

    @rule(slot=st.sampled_from(SLOTS))
    def forget(self, slot: int) -> None:
        self.index.forget(slot)
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
            assert 0 <= engine.shadow.capacity <= engine.nominal_capacity
            if not engine.unfinished:
                assert 0 <= engine.shadow.used <= engine.shadow.capacity
                assert len(engine.shadow) <= 15

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


@pytest.fixture
def index() -> WarmIndex:
    index = WarmIndex()
    for slot in SLOTS:
        index.resize(slot, 1000)
    return index


def test_a_prompt_is_warm_where_it_was_put(index: WarmIndex) -> None:
    """There and nowhere else, from the moment it was put; a continuation is warm up to where it leaves."""
    index.put(0, prompt_of("abc"))
    index.put(1, prompt_of("ab"))
    assert warm(index, prompt_of("abcd")) == {0: ENDS[2], 1: ENDS[1]}
    assert warm(index, prompt_of("abd")) == {0: ENDS[1], 1: ENDS[1]}
    assert warm(index, prompt_of("b")) == warm(index, prompt_of("")) == {}
    assert len(index) == 3


def test_engines_that_leave_together_are_told_together(index: WarmIndex) -> None:
    """A system prompt that all hold costs one step of the walk, not one an engine."""
    for slot in SLOTS:
        index.put(slot, prompt_of("aa"))
    index.put(2, prompt_of("aab"))
    assert list(index.walk(prompt_of("aaba"), EVERYONE)) == [(0b011, ENDS[1]), (0b100, ENDS[2])]


def test_what_was_never_computed_is_taken_back(index: WarmIndex) -> None:
    """A request that fails before its first token promises nothing any more; what was warm before stays."""
    index.computed(index.put(0, prompt_of("ab")))
    trace = index.put(0, prompt_of("abcd"))
    index.retract(trace)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[1]}
    index.retract(trace)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[1]}


def test_what_was_computed_is_not_taken_back(index: WarmIndex) -> None:
    """After the first token the engine holds the prompt, however the request ends."""
    trace = index.put(0, prompt_of("abcd"))
    index.computed(trace)
    index.retract(trace)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[3]}


def test_what_a_later_request_shares_is_not_taken_back(index: WarmIndex) -> None:
    """Two requests for one prompt: one fails, the other still brings the engine to hold it."""
    first, second = index.put(0, prompt_of("abcd")), index.put(0, prompt_of("abcd"))
    index.retract(first)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[3]}
    index.retract(second)
    index.retract(first)
    assert warm(index, prompt_of("abcd")) == {0: ENDS[3]}


def test_an_answer_makes_its_conversation_warmer(index: WarmIndex) -> None:
    """What was decoded is in the engine's cache too."""
    index.grow(index.put(0, prompt_of("ab")), prompt_of("abcd"))
    assert warm(index, prompt_of("abcde")) == {0: ENDS[3]}


def test_nothing_from_before_a_reset_comes_back(index: WarmIndex) -> None:
    """A pod that restarted holds nothing of what it was given before, whatever is learned of that later."""
    before = index.put(0, prompt_of("ab"))
    index.forget(0)
    index.resize(0, 1000)
    index.put(0, prompt_of("b"))
    index.grow(before, prompt_of("abcd"))
    assert not index.correct(before, 0)
    index.retract(before)
    index.computed(before)
    assert warm(index, prompt_of("abcd")) == {}
    assert warm(index, prompt_of("b")) == {0: ENDS[0]}


def test_what_the_engine_forgot_is_forgotten(index: WarmIndex) -> None:
    """Told that it reused less than believed, all that was last used no later is given up, and no more."""
    for letters in ("aaaa", "bbbb", "abab"):
        index.computed(index.put(0, prompt_of(letters)))
    index.computed(index.put(1, prompt_of("bbbb")))
    again = index.put(0, prompt_of("bbbb"))
    assert index.correct(again, ENDS[1])
    # "bbbb" was lost in turn 2: what was last used in turn 1 is lost as well; turn 3 and what is computed now are not.
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[0]}
    assert warm(index, prompt_of("abab")) == {0: ENDS[3]}
    assert warm(index, prompt_of("bbbb")) == {0: ENDS[3], 1: ENDS[3]}


def test_a_shadow_too_large_shrinks_and_recovers(index: WarmIndex) -> None:
    """Wrong promises make the shadow smaller than its engine says it is; kept ones let it grow back, and no further."""
    index.computed(index.put(0, prompt_of("aaaa")))
    shadow = index._engines[0].shadow
    assert index.correct(index.put(0, prompt_of("aaaa")), 0)
    assert shadow.capacity < 1000
    for _ in range(200):
        trace = index.put(0, prompt_of("aaaa"))
        index.computed(trace)
        assert not index.correct(trace, ENDS[3])
    assert shadow.capacity == 1000


def test_a_prompt_that_two_gave_up_does_not_overfill(index: WarmIndex) -> None:
    """The second of two was told that the first one's blocks stood there; when both fail nothing exceeds the cache."""
    index.resize(0, ENDS[3])
    index.computed(index.put(0, prompt_of("bb")))
    first, second = index.put(0, prompt_of("aaaa")), index.put(0, prompt_of("aaaaa"))
    index.retract(first)
    index.retract(second)
    assert index.size_of(0) <= ENDS[3]


@pytest.mark.parametrize("reused", [ENDS[3], ENDS[3] * 1.5, ENDS[3] * (1 - SLACK)])
def test_a_kept_promise_changes_nothing(index: WarmIndex, reused: float) -> None:
    """Bytes are not tokens: what is nearly what was promised is what was promised; more is no fault."""
    index.computed(index.put(0, prompt_of("aaaa")))
    assert not index.correct(index.put(0, prompt_of("aaaa")), reused)
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[3]}


def test_nothing_promised_is_nothing_to_correct(index: WarmIndex) -> None:
    """A cold prompt that was reused all the same (by somebody else's doing) teaches nothing."""
    assert not index.correct(index.put(0, prompt_of("aaaa")), ENDS[3])


def test_two_at_once_may_both_be_cold(index: WarmIndex) -> None:
    """The second of two equal prompts finds the first one not yet computed: that is not forgetting."""
    index.put(0, prompt_of("aaaa"))
    second = index.put(0, prompt_of("aaaa"))
    assert not index.correct(second, 0)
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[3]}


def test_a_smaller_cache_forgets_at_once(index: WarmIndex) -> None:
    """A pod that says it holds less is believed at once; saying the same again changes nothing."""
    index.computed(index.put(0, prompt_of("aaaa")))
    index.resize(0, 1000)
    assert index.size_of(0) == ENDS[3]
    index.resize(0, ENDS[1])
    assert index.size_of(0) == ENDS[1]
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[1]}


def test_an_engine_nobody_sized_holds_nothing() -> None:
    """Until its size is known an engine is not believed warm."""
    index = WarmIndex()
    index.computed(index.put(5, prompt_of("aaaa")))
    assert list(index.walk(prompt_of("aaaa"), 1 << 5)) == []
    assert index.size_of(5) == index.size_of(6) == 0
    index.forget(6)


def test_an_evicted_prompt_is_not_warm(index: WarmIndex) -> None:
    """What no longer fits is forgotten, least recently used first, as in the engine."""
    index.resize(0, ENDS[3] + ENDS[3] - ENDS[0])
    for letters in ("aaaa", "bbbb", "aaaa", "abbb"):
        index.computed(index.put(0, prompt_of(letters)))
    assert warm(index, prompt_of("bbbb")) == {}
    assert warm(index, prompt_of("aaaa")) == {0: ENDS[3]}
    assert warm(index, prompt_of("abbb")) == {0: ENDS[3]}


@given(st.binary(min_size=1, max_size=4000), st.binary(max_size=4000))
def test_real_prompts_are_warm_up_to_their_last_full_block(text: bytes, more: bytes) -> None:
    """With prompts cut from bytes: the next turn is warm for all that the first one covered in full blocks."""
    index = WarmIndex()
    index.resize(0, 1 << 20)
    first = cut_prompt(text, 3)
    index.computed(index.put(0, first))
    expected = [(1, first.covered)] if first.covered else []
    assert list(index.walk(cut_prompt(text + more, 3), 1)) == expected
    assert list(index.walk(cut_prompt(text + more, 4), 1)) == []


def test_a_resize_keeps_what_corrections_taught() -> None:
    """A better ratio of bytes to tokens scales the cache; a change within the ratio's noise leaves it."""
    index = WarmIndex()
    index.resize(0, 10_000)
    engine = index._engines[0]
    engine.shadow.capacity = 8_000
    index.resize(0, 10_200)
    assert (engine.nominal_capacity, engine.shadow.capacity) == (10_000, 8_000)
    index.resize(0, 5_000)
    assert (engine.nominal_capacity, engine.shadow.capacity) == (5_000, 4_000)
