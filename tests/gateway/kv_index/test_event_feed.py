"""Payloads of every age, and of nobody's."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kv_index.event_feed import EventBatchDecoder, EventFeed, UndecodableEventsError, sequence_number
from routing.precise.event_reliability import MIN_AGREEMENTS, UnreliableReason
from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from routing.precise.precise_index import NOTHING_CACHED, PreciseIndex
from routing.precise.token_chains import BlockHashes, TokenPrompt, pack_tokens
from tests.gateway.kv_index.publisher import pack


def test_maps_and_arrays_are_the_same_events() -> None:
    """Newer vLLM packs an event as a map, older as an array in the order of the fields."""
    reader = EventBatchDecoder()
    stored, removed = BlockStored([1], None, [5, 6], 2, medium="GPU"), BlockRemoved([1], "GPU")
    rows = [["BlockStored", [1], None, [5, 6], 2, None, "GPU"], ["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"]]
    old = reader.decode(msgspec.msgpack.encode([0.0, rows]))
    new = reader.decode(pack([stored, removed, AllBlocksCleared()]))
    assert new == [stored, removed, AllBlocksCleared()]
    assert [msgspec.structs.astuple(event) for event in old] == [msgspec.structs.astuple(event) for event in new]
    assert isinstance(old[0], BlockStored)


def test_unknown_events_are_passed_over_and_counted() -> None:
    """What a later vLLM says beside what we know does not cost us the rest."""
    reader = EventBatchDecoder()
    events = reader.decode(pack([{"type": "BlockMoved", "to": 3}, AllBlocksCleared(), {"type": "BlockStored"}]))
    assert events == [AllBlocksCleared()]
    assert reader.unread == 2


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"hello", msgspec.msgpack.encode({"a": 1}), b"\x93" * 3000])
def test_what_is_no_batch_is_rejected(payload: bytes) -> None:
    """One error for all of it."""
    with pytest.raises(UndecodableEventsError):
        EventBatchDecoder().decode(payload)


def test_numbers_are_eight_bytes() -> None:
    """Big end first; anything else is none."""
    assert sequence_number((258).to_bytes(8, "big")) == 258
    assert sequence_number(b"12") is None


BLOCK = 2


class Scene:
    """A feed whose missed batches are fetched by hand."""

    def __init__(self, *, replays: bool = True) -> None:
        self.index = PreciseIndex()
        self.index.add_engine("e", BLOCK)
        self.requested: list[int] = []
        self.replays = replays
        self.stated: list[tuple[object, ...]] = []
        self.feed = EventFeed("e", self.index, log_event=lambda *words, **_: self.stated.append(words), ask=self.ask)  # type: ignore[arg-type]

    def ask(self, start: int) -> bool:
        if self.replays:
            self.requested.append(start)
        return self.replays

    def replay(self, batches: list[bytes], upto: int, *, first: int = 0) -> None:
        """Answer the last question, from what the publisher still has."""
        for number in range(max(first, self.requested[-1]), upto):
            self.feed.take_replayed(number, batches[number])
        self.feed.end_replay(answered=True)

    def held(self, tokens: list[int]) -> int:
        return self.index.lookup(BlockHashes(TokenPrompt(pack_tokens([*tokens, 99])))).get("e", NOTHING_CACHED).tokens


def chain(blocks: int) -> list[bytes]:
    """One batch per block of 0, 0, 1, 1, 2, 2, ..."""
    return [
        pack([BlockStored([name + 1], name or None, [name] * BLOCK, BLOCK, medium="GPU")]) for name in range(blocks)
    ]


def prompt(blocks: int) -> list[int]:
    return [token for token in range(blocks) for _ in range(BLOCK)]


def test_the_first_batch_of_all_is_complete_knowledge() -> None:
    """Whoever hears an engine from its number 0 on may believe it."""
    scene = Scene(replays=False)
    scene.feed.start()
    assert scene.feed.reliability.unreliable_reason is UnreliableReason.NO_EVENTS
    for number, payload in enumerate(chain(3)):
        scene.feed.take(number, payload)
    assert scene.feed.reliability.is_reliable
    assert scene.held(prompt(3)) == 6


def test_an_engine_that_never_spoke_holds_nothing() -> None:
    """A replay that is empty from the start is complete knowledge as well."""
    scene = Scene()
    scene.feed.start()
    scene.feed.end_replay(answered=True)
    assert scene.feed.reliability.is_reliable


def test_a_late_joiner_has_the_history_reported() -> None:
    """What comes by itself meanwhile waits, and what comes twice counts once."""
    scene, batches = Scene(), chain(5)
    scene.feed.start()
    scene.feed.take(3, batches[3])
    scene.feed.take(4, batches[4])
    assert scene.held(prompt(5)) == 0
    scene.replay(batches, 4)
    assert scene.feed.reliability.is_reliable
    assert scene.held(prompt(5)) == 10
    assert scene.feed.count.batches == 5


def test_a_history_that_is_forgotten_is_unreliable() -> None:
    """The publisher keeps so many batches only: who comes later does not know all, and says so once."""
    scene, batches = Scene(), chain(6)
    scene.feed.start()
    scene.replay(batches, 6, first=3)
    assert scene.feed.reliability.unreliable_reason is UnreliableReason.LATE
    assert [words[0] for words in scene.stated] == []
    assert scene.index.engines["e"].count.orphaned == 3


def test_a_gap_is_filled_again() -> None:
    """From the batch that is missing on, and the engine is believed throughout."""
    scene, batches = Scene(), chain(6)
    for number in (0, 1, 4):
        scene.feed.take(number, batches[number])
    assert scene.requested == [2]
    scene.feed.take(5, batches[5])
    scene.replay(batches, 5)
    assert scene.feed.reliability.is_reliable
    assert scene.held(prompt(6)) == 12
    assert (scene.feed.count.gaps, scene.feed.count.unhealed) == (1, 0)


def test_a_hole_in_what_is_sent_again_is_requested_once_more() -> None:
    """The publisher's socket drops what it cannot send at once."""
    scene, batches = Scene(), chain(6)
    scene.feed.start()
    for number in (0, 1, 3, 5):
        scene.feed.take_replayed(number, batches[number])
    scene.feed.end_replay(answered=True)
    assert scene.requested == [0, 2]
    scene.replay(batches, 6)
    assert scene.feed.reliability.is_reliable
    assert scene.held(prompt(6)) == 12


@pytest.mark.parametrize("replays", [True, False])
def test_a_gap_that_cannot_be_filled_is_unreliable(*, replays: bool) -> None:
    """What is known stays known, what comes is followed, and the events do not decide."""
    scene, batches = Scene(replays=replays), chain(6)
    for number in (0, 1, 4):
        scene.feed.take(number, batches[number])
    if replays:
        scene.feed.end_replay(answered=False)
    scene.feed.take(5, batches[5])
    assert scene.feed.reliability.unreliable_reason is UnreliableReason.GAP
    assert scene.feed.count.unhealed == 1
    assert scene.held(prompt(6)) == 4
    assert [words[0] for words in scene.stated] == ["warning"]


def test_a_cleared_cache_heals() -> None:
    """From there on everything is known again."""
    scene, batches = Scene(replays=False), chain(6)
    for number in (0, 4):
        scene.feed.take(number, batches[number])
    assert scene.feed.reliability.unreliable_reason is UnreliableReason.GAP
    scene.feed.take(5, pack([AllBlocksCleared(), BlockStored([9], None, [7, 7], BLOCK)]))
    assert scene.feed.reliability.is_reliable
    assert (scene.held(prompt(1)), scene.held([7, 7])) == (0, 2)


def test_answers_heal_what_events_cannot() -> None:
    """The index takes over what was really reused, and an engine that then agrees is believed again."""
    scene, batches = Scene(replays=False), chain(3)
    for number in (0, 2):
        scene.feed.take(number, batches[number])
    ends = BlockHashes(TokenPrompt(pack_tokens([*prompt(3), 99])))
    for _ in range(MIN_AGREEMENTS + 1):
        foretold = scene.index.lookup(ends).get("e", NOTHING_CACHED).tokens
        scene.feed.reliability.observe(foretold, 6, BLOCK)
        scene.index.correct("e", ends, 6)
    assert scene.feed.reliability.is_reliable
    assert scene.held(prompt(3)) == 6
    scene.index.correct("e", ends, 2)
    assert scene.held(prompt(3)) == 2


def test_counting_from_the_start_is_a_restart() -> None:
    """Its cache is another one; that others say so too, later, changes nothing."""
    scene, batches = Scene(), chain(3)
    for number in range(3):
        scene.feed.take(number, batches[number])
    scene.feed.take(0, pack([BlockStored([1], None, [5, 5], BLOCK)]))
    assert (scene.held(prompt(3)), scene.held([5, 5])) == (0, 2)
    assert scene.feed.reliability.is_reliable
    assert scene.feed.count.restarts == 1
    scene.feed.note_pod_restart()
    assert scene.held([5, 5]) == 2


def test_a_restart_that_others_saw_first_is_believed() -> None:
    """The pod's own clock tells it before its events do."""
    scene, batches = Scene(), chain(3)
    for number in range(3):
        scene.feed.take(number, batches[number])
    scene.feed.note_pod_restart()
    assert scene.held(prompt(3)) == 0
    assert scene.requested == [0]
    scene.feed.end_replay(answered=True)
    scene.feed.take(0, batches[0])
    assert scene.held(prompt(1)) == 2
    assert scene.feed.reliability.is_reliable


def test_a_restart_is_believed_once_whoever_sees_it_first() -> None:
    """An engine that is heard at another place has restarted: the word of others about it comes before or after."""
    for told_first in (True, False):
        former, scene, batches = Scene(), Scene(), chain(1)
        if told_first:
            former.feed.note_pod_restart()
        scene.feed.take_over(former.feed)
        scene.feed.take(0, batches[0])
        if not told_first:
            scene.feed.note_pod_restart()
        assert scene.held(prompt(1)) == 2
        assert scene.feed.reliability.is_reliable
        scene.feed.note_pod_restart()
        assert scene.feed.reliability.unreliable_reason is UnreliableReason.NO_EVENTS


def test_every_turn_of_trust_is_reported() -> None:
    """Whoever tells others whom to believe need not look at every engine all the time."""
    turns: list[str] = []
    index = PreciseIndex()
    index.add_engine("e", BLOCK)
    feed = EventFeed(
        "e",
        index,
        log_event=lambda *_, **__: None,  # type: ignore[arg-type]
        ask=lambda _: False,
        turned=lambda: turns.append("turn"),
    )
    batches = chain(4)
    for numbers, gone_by in (([0, 1], 1), ([3], 2)):
        for number in numbers:
            feed.take(number, batches[number])
        assert len(turns) == gone_by
    feed.take(4, pack([AllBlocksCleared()]))
    assert len(turns) == 3


def test_what_cannot_be_read_is_unreliable_and_never_fatal() -> None:
    """A batch that is noise may have said anything."""
    scene, batches = Scene(), chain(2)
    scene.feed.take(0, batches[0])
    scene.feed.take(1, b"noise")
    assert scene.feed.reliability.unreliable_reason is UnreliableReason.GAP
    assert scene.feed.count.malformed == 1
    scene.feed.take(2, pack([BlockRemoved([1])]))
    assert scene.held(prompt(1)) == 0


def test_events_that_break_the_index_break_nothing_else() -> None:
    """An engine that says what nobody thought of is in doubt, and is followed on."""
    scene, batches = Scene(), chain(2)
    scene.feed.take(0, batches[0])
    scene.feed.take(1, pack([{"type": "BlockStored", "block_hashes": [7], "extra_keys": [[["x", 2**63]]] * 3}]))
    scene.index._engines["e"].apply = None  # type: ignore[method-assign, assignment]
    scene.feed.take(2, batches[1])
    assert scene.feed.reliability.unreliable_reason is UnreliableReason.GAP
    assert ("error", "kv_events_failed") in scene.stated


def test_waiting_batches_are_bounded() -> None:
    """Who asks for the past does not keep all of the present."""
    scene = Scene()
    scene.feed.start()
    payload = pack([AllBlocksCleared()])
    for number in range(10, 10 + 5000):
        scene.feed.take(number, payload)
    assert len(scene.feed._waiting) == 0
    assert scene.feed.count.batches == 5000


@given(st.lists(st.sampled_from(["say", "lose", "replay", "deaf"]), max_size=40), st.integers(0, 6))
def test_whatever_the_network_does_the_believed_are_right(steps: list[str], late: int) -> None:
    """Batches get lost, replays come late or not at all: an engine that is believed holds exactly what it holds."""
    scene, batches = Scene(), chain(60)
    number = late
    begin: Callable[[], None] = scene.feed.start
    begin()
    for step in steps:
        if step == "say":
            scene.feed.take(number, batches[number])
            number += 1
        elif step == "lose":
            number += 1
        elif scene.feed._replays_from is not None:
            if step == "replay":
                scene.replay(batches, number)
            else:
                scene.feed.end_replay(answered=False)
    if scene.feed.reliability.is_reliable and scene.feed._replays_from is None:
        assert scene.held(prompt(60)) == BLOCK * scene.feed._next
        assert scene.feed.reliability.unreliable_reason is None
    assert scene.held(prompt(60)) <= BLOCK * number
