"""The shadow cache, held against a naive one: single blocks, least recently used first."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.blocks import Prompt
from routing.shadow import ShadowCache
from tests.routing.prompts import ENDS, prompt_of, prompts

UNBOUNDED = 1 << 30


class NaiveCache:
    """What a shadow cache should do, block by block."""

    def __init__(self, capacity: int, most_blocks: int) -> None:
        self.capacity = capacity
        self.most_blocks = most_blocks
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
        return list(self._drop_while(lambda: self.used > self.capacity or len(self.turn_of) > self.most_blocks))

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

    def __init__(self, most_blocks: int) -> None:
        self.real = ShadowCache(UNBOUNDED, most_blocks)
        self.naive = NaiveCache(UNBOUNDED, most_blocks)
        self.used: list[tuple[Prompt, int]] = []

    def use(self, prompt: Prompt, *, again: bool) -> None:
        turn = max(1, len(self.used)) if again else len(self.used) + 1
        found, earlier = self.real.use(prompt, turn), self.naive.use(prompt, turn)
        assert found.warm_blocks == len(earlier)
        assert turns_of_blocks(found.earlier) == earlier
        if not again:
            self.used.append((prompt, found.warm_blocks))
        assert sorted(self.real.shrink()) == sorted(self.naive.shrink())

    def retract(self, turn: int) -> None:
        if turn < len(self.used):
            prompt, warm_blocks = self.used[turn]
            dropped = self.real.retract(prompt, turn + 1, warm_blocks)
            assert sorted(dropped) == sorted(self.naive.retract(prompt, turn + 1, warm_blocks))

    def shrink_to(self, capacity: int) -> None:
        self.real.capacity = self.naive.capacity = capacity
        assert sorted(self.real.shrink()) == sorted(self.naive.shrink())

    def check(self) -> None:
        assert list(self.real) == list(self.naive.turn_of)
        assert self.real.used == self.naive.used <= self.real.capacity
        assert len(self.real) == len(self.naive.turn_of) <= self.naive.most_blocks


def turns_of_blocks(earlier: tuple[tuple[int, int], ...]) -> list[int]:
    """Stretches as one turn per block."""
    turns: list[int] = []
    for end, turn in earlier:
        turns += [turn] * (end - len(turns))
    return turns


@given(operations, st.sampled_from([UNBOUNDED, 12, 3]))
def test_it_does_what_a_naive_cache_does(operations: list[tuple[str, object]], most_blocks: int) -> None:
    """Whatever is used, retracted, forgotten or squeezed: the same blocks are held and forgotten, in the same order."""
    pair = Pair(most_blocks)
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
    cache = ShadowCache(UNBOUNDED, UNBOUNDED)
    prompt = prompt_of("abcd")
    cache.use(prompt, 1)
    cache.capacity = ENDS[1]
    assert set(cache.shrink()) == set(prompt.blocks[2:])
    assert list(cache) == [prompt.blocks[1], prompt.blocks[0]]


def test_a_prompt_larger_than_the_cache_keeps_its_head() -> None:
    """An engine cannot hold it whole either."""
    cache = ShadowCache(ENDS[2], UNBOUNDED)
    prompt = prompt_of("abcdef")
    cache.use(prompt, 1)
    cache.shrink()
    assert set(cache) == set(prompt.blocks[:3])
    assert cache.used == ENDS[2]


@pytest.mark.parametrize("capacity", [0, UNBOUNDED])
def test_the_empty_prompt_is_nothing(capacity: int) -> None:
    """Using it holds nothing and finds nothing."""
    cache = ShadowCache(capacity, UNBOUNDED)
    use = cache.use(prompt_of(""), 1)
    assert (use.warm_blocks, use.earlier, len(cache), cache.used) == (0, (), 0, 0)
    assert cache.shrink() == cache.forget_before(9) == cache.retract(prompt_of(""), 1, 0) == []


def test_what_others_stand_on_is_not_retracted() -> None:
    """Answers of an earlier request have grown behind a prompt that is then taken back: their beginning has to stay."""
    cache = ShadowCache(UNBOUNDED, UNBOUNDED)
    cache.use(prompt_of("ab"), 1)
    asked = prompt_of("abc")
    warm_blocks = cache.use(asked, 2).warm_blocks
    for grown in ("abcd", "abce"):
        cache.use(prompt_of(grown), 2)
    assert cache.retract(asked, 2, warm_blocks) == []
    held = {block for grown in ("abcd", "abce") for block in prompt_of(grown).blocks}
    assert set(cache) == held
    assert set(cache.forget_before(3)) == held


@given(st.lists(prompts, max_size=8), prompts)
def test_the_depth_is_how_many_blocks_are_held(used: list[Prompt], asked: Prompt) -> None:
    """Wherever a prompt leaves the tree: at a run's end, in its middle, at the root."""
    cache = ShadowCache(UNBOUNDED, UNBOUNDED)
    for turn, prompt in enumerate(used):
        cache.use(prompt, turn + 1)
    held = set(cache)
    assert cache.depth(asked.blocks) == sum(block in held for block in asked.blocks)


def test_what_goes_next_is_told_when_the_cache_is_full() -> None:
    """When it was last used; nothing where there is room."""
    shadow = ShadowCache(10, 100)
    assert shadow.next_to_go is None
    shadow.use(prompt_of("aaaa"), 1)
    assert shadow.next_to_go is None
    shadow.use(prompt_of("bbbbb"), 2)
    assert shadow.next_to_go == 1
