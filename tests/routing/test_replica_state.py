"""The voice of a router: every word is said once, in order, and a statement holds what is open."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from routing.affinity import hashed_id
from routing.blocks import BLOCK_ENDS, Prompt
from routing.ledger import Charge, ExternalLoad
from routing.replica_state import (
    CATCH_UP_S,
    MAX_REPLICAS,
    MAX_RESEND_BLOCKS,
    MIN_SILENCE_S,
    RESEND_PAUSE_S,
    RESEND_S,
    RESENT_AT_ONCE,
    EndedUpdate,
    FirstTokenUpdate,
    HistoryReplay,
    OpenRequest,
    PlacedUpdate,
    QueueUpdate,
    ReplicaState,
    SettledUpdate,
    Snapshot,
    StateUpdate,
    UpdatePublisher,
)
from routing.request import Usage
from tests.routing.engines import MODEL, TALK, add_pod, ask, place, router_of, serve
from tests.routing.exchanges import Talker, loads, pair, talker, tell_all


def test_a_request_is_reported_from_its_place_to_its_end() -> None:
    """Placed, first token, settled with its answer, ended: in this order, each once, whatever is called twice."""
    one = talker(1, 2)
    request = ask(session="talk")
    placement = place(one.router, request, now_s=1.0)
    placement.first_token(1.5)
    placement.first_token(1.6)
    placement.settle(Usage(2000, 11, 0), 2.0, answer=b"x" * 300, response_id="resp")
    placement.release(2.0)
    placement.release(2.1)
    placed, first, settled, ended = one.voice.take()
    assert isinstance(placed, PlacedUpdate)
    assert (placed.charge.engine, placed.model, placed.session) == (placement.engine.name, "m", hashed_id("talk"))
    assert placed.prompt is request.prompt
    assert placed.charge.prefill_tokens > 1000
    assert isinstance(first, FirstTokenUpdate)
    assert (first.number, first.took_s) == (placed.charge.number, 0.5)
    assert isinstance(settled, SettledUpdate)
    assert (settled.prompt_tokens, settled.completion_tokens, settled.decode_s) == (2000, 11, 0.5)
    assert settled.response == hashed_id("resp")
    grown = request.prompt.extended(b"x" * 300)
    assert (request.prompt.blocks + settled.grown_blocks, settled.grown_size) == (grown.blocks, grown.size)
    assert ended == EndedUpdate(placed.charge.number)
    assert one.voice.take() == []


def test_a_statement_holds_what_is_open() -> None:
    """Who has ended is not in it; who has begun to answer is not in prefill."""
    one = talker(1, 1)
    gone, begun, waiting = (place(one.router, ask(TALK[start:])) for start in (0, 50, 90))
    gone.release(1.0)
    begun.first_token(1.0)
    one.voice.take()
    one.voice.publish_snapshot()
    (stated,) = one.voice.take()
    assert isinstance(stated, Snapshot)
    assert [charge.in_prefill for charge in stated.open] == [False, True]
    assert stated.open[1].kv_tokens == one.router.ledger.kv_tokens[0] - stated.open[0].kv_tokens
    assert one.voice.open_count == 2
    waiting.release(2.0)


def test_a_publisher_wakes_whoever_takes_once() -> None:
    """The first word wakes, those behind it do not, and after a taking the next one wakes again."""
    woken: list[int] = []
    voice = UpdatePublisher(lambda: woken.append(1))
    voice.publish_snapshot()
    voice.publish_snapshot()
    assert len(woken) == 1
    voice.take()
    voice.publish_snapshot()
    assert len(woken) == 2


def test_without_a_publisher_nothing_is_kept() -> None:
    """A router by itself says nothing and pays nothing."""
    router = router_of(1)
    place(router, ask()).release(1.0)
    assert router.observers is None


def test_what_continues_a_response_does_not_report_hits() -> None:
    """Its engine counts the whole conversation, of which only the newest part was seen."""
    one = talker(1, 1)
    placement = place(one.router, ask(continues="resp"))
    placement.first_token(0.1)
    placement.settle(Usage(9000, 5, 8000), 1.0, answer=b"hello")
    settled = one.voice.take()[-1]
    assert isinstance(settled, SettledUpdate)
    assert (settled.prompt_tokens, settled.grown_blocks, settled.completion_tokens) == (0, (), 5)
    placement.release(1.0)


TEXTS = [TALK, TALK[:3000], TALK[40:4000], b"Call me Ishmael. " * 300]


def test_another_s_request_is_charged_and_given_back() -> None:
    """Its prefill, its KV and its place are ours from its placing to its end, moment by moment."""
    here, there = pair()
    placement = place(there.router, ask())
    tell_all([here, there], 0.1)
    assert loads(here.router) == loads(there.router) != {}
    slot = placement.engine.slot
    assert here.hearing.remote_load() == {slot: pytest.approx((1, *loads(here.router)[placement.engine.name][:2]))}
    placement.first_token(1.0)
    tell_all([here, there], 1.0)
    assert loads(here.router) == loads(there.router)
    assert here.hearing.remote_load()[slot][:2] == (1, 0.0)
    assert here.router.ledger.prefill_tokens[placement.engine.slot] == 0
    placement.release(2.0)
    tell_all([here, there], 2.0)
    assert here.router.ledger.is_empty()
    assert here.hearing.remote_load() == {}


def test_what_engines_answer_others_is_passed_on_as_a_sign_of_life() -> None:
    """First tokens and whole answers, by the engine's name; not a request that is only placed, or ends unanswered."""
    here, there = pair()
    spoken: list[tuple[str, float]] = []
    here.hearing = ReplicaState(here.router, lambda engine, now_s: spoken.append((engine, now_s)))
    streamed, complete, gone = (place(there.router, ask()) for _ in range(3))
    tell_all([here, there], 0.1)
    streamed.first_token(1.0)
    tell_all([here, there], 1.0)
    complete.settle(Usage(2000, 5, 0), 2.0)
    complete.release(2.0)
    gone.release(2.0)
    tell_all([here, there], 2.0)
    assert spoken == [(streamed.engine.name, 1.0), (complete.engine.name, 2.0)]


def test_another_s_prompt_is_warm_and_its_session_known() -> None:
    """The second turn of a conversation goes to where another router sent its first."""
    here, there = pair()
    first = serve(there.router, ask(session="talk"), draw=0.99)
    tell_all([here, there], 1.0)
    second = place(here.router, ask(TALK + b"And then?", session="talk"), now_s=1.0)
    assert second.engine.name == first.engine.name
    assert second.predicted.cached_tokens > 0.9 * second.predicted.prompt_tokens


def test_a_response_is_known_to_all() -> None:
    """A request that continues a response finds the engine that made it, whoever had placed it."""
    here, there = pair()
    placement = place(there.router, ask(), draw=0.99)
    placement.settle(Usage(2000, 5, 0), 1.0, response_id="resp")
    placement.release(1.0)
    tell_all([here, there], 1.0)
    assert here.router.responses.get("resp") == placement.engine.slot


def test_an_answer_grows_the_prefix_for_all() -> None:
    """What an engine generated is warm for the other router's next turn too."""
    here, there = pair()
    request, answer = ask(), b"It was the epoch of belief. " * 200
    placement = place(there.router, request)
    placement.first_token(0.5)
    placement.settle(Usage(2000, 1400, 0), 1.0, answer=answer)
    placement.release(1.0)
    tell_all([here, there], 1.0)
    walked = list(here.router.index.match(request.prompt.extended(answer), 0b111))
    assert walked[-1][1] > request.prompt.size + 0.9 * len(answer)


def test_a_request_that_never_began_leaves_no_cached_prefix() -> None:
    """As with our own: what an engine was never seen to compute is not believed to be there."""
    here, there = pair()
    request = ask()
    place(there.router, request).release(1.0)
    tell_all([here, there], 1.0)
    assert list(here.router.index.match(request.prompt, 0b111)) == []


def test_paces_are_learned_from_others() -> None:
    """An engine that was only ever seen by another router is known to be slow here too."""
    here, there = pair(1)
    for turn in range(20):
        placement = place(there.router, ask(b"%d " % turn * 2000), now_s=turn * 100.0)
        placement.first_token(turn * 100.0 + 4 * placement.predicted.ttft_s)
        placement.release(turn * 100.0 + 90)
        tell_all([here, there], turn * 100.0 + 90)
    assert here.router.costs.seconds_per_token == pytest.approx(there.router.costs.seconds_per_token)
    assert here.router.costs.seconds_per_token[0] > 2 / 12_000


@pytest.mark.parametrize(("peers", "learned"), [(1, 6), (3, 2)])
def test_of_several_peers_one_request_in_as_many_is_learned_from(
    peers: int, learned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning costs the same however many gateways there are; of a single peer all requests count."""
    here, there = pair(1)
    seen: list[float] = []
    monkeypatch.setattr(here.router.costs, "observe_first_token", lambda _slot, _tokens, took_s: seen.append(took_s))
    for name in range(peers):
        here.hearing.apply(name, 1, [Snapshot(())], 0.0)
    for number in range(6):
        placement = place(there.router, ask(b"%d " % number * 2000))
        placement.first_token(0.5)
        here.hearing.apply(number % peers, 2 + number // peers, there.voice.take(), 0.5)
    assert len(seen) == learned


def test_a_corrected_prediction_corrects_all() -> None:
    """An engine that was seen to have forgotten a prompt is believed cold by the other router as well."""
    here, there = pair(1)
    serve(there.router, ask())
    placement = place(there.router, ask(), now_s=10.0)
    placement.first_token(11.0)
    tell_all([here, there], 11.0)
    assert here.router.index.size_of(0) == ask().prompt.covered
    placement.settle(Usage(2000, 5, cached_tokens=0), 12.0)
    placement.release(12.0)
    tell_all([here, there], 12.0)
    assert here.router.index.size_of(0) == there.router.index.size_of(0)
    for router in (here.router, there.router):
        serve(router, ask(TEXTS[3]), now_s=20.0)
        router.index.resize(0, 10_000)
    assert here.router.index.size_of(0) == there.router.index.size_of(0)


def test_routers_that_exchange_updates_choose_like_one() -> None:
    """Conversations spread over two routers find their prefixes as often as with one router, and load as evenly."""

    def play(routers: list[Talker]) -> tuple[float, float]:
        warm = requested = 0.0
        for turn in range(6):
            for talk in range(40):
                now_s = turn * 100.0 + talk
                # Turns of one conversation come to either router.
                one = routers[(talk + turn) % len(routers)]
                text = b"Talk %d. " % talk * 200 + b"".join(b"Turn %d. " % past * 100 for past in range(turn))
                placement = serve(one.router, ask(text), now_s=now_s, draw=(talk * 0.37) % 1)
                warm += placement.predicted.cached_tokens
                requested += placement.predicted.prompt_tokens
                tell_all(routers, now_s)
        sizes = [routers[0].router.index.size_of(slot) for slot in range(4)]
        return warm / requested, max(sizes) / min(sizes)

    alone, together, apart = play([talker(1, 4)]), play([talker(1, 4), talker(2, 4)]), [talker(1, 4), talker(2, 4)]
    for one in apart:
        one.hearing.apply = lambda *_: True  # type: ignore[method-assign]
    assert together == pytest.approx(alone, rel=0.02)
    assert play(apart)[0] < 0.9 * alone[0]


def test_a_gap_is_detected_and_a_statement_heals_it() -> None:
    """Who has lost a batch says so until the origin states what it has open."""
    here, there = pair()
    first = place(there.router, ask())
    assert not here.hearing.apply(*there.batch(), 0.0), "of an origin heard for the first time the past is unknown"
    there.voice.publish_snapshot()
    assert here.hearing.apply(*there.batch(), 0.0)
    first.release(1.0)
    there.batch()
    place(there.router, ask(TEXTS[3]))
    assert not here.hearing.apply(*there.batch(), 1.0)
    there.voice.publish_snapshot()
    assert here.hearing.apply(*there.batch(), 1.0)
    assert (here.hearing.gaps, loads(here.router)) == (1, loads(there.router))


def held(one: Talker, text: bytes) -> list[tuple[int, int]]:
    """What a router knows of a prompt on all engines."""
    return one.router.index.match(ask(text).prompt, 0b111)


@pytest.mark.parametrize("is_stated", [False, True])
@pytest.mark.parametrize("is_removed", [False, True])
def test_what_was_placed_in_a_gap_is_sent_again(is_removed: bool, is_stated: bool) -> None:
    """Whoever missed it knows afterwards what engines hold, also where the sender was taken to be gone meanwhile, and
    where the first batch behind the gap has a snapshot; whoever has received it changes nothing.
    """
    (here, there), other = pair(), talker(3, 3)
    serve(there.router, ask(TEXTS[1]), now_s=1.0)
    for one in (here, other):
        one.hearing.apply(there.name, 1, [Snapshot(())], 2.0)
    there.batch()
    answered = place(there.router, ask(TEXTS[0]), now_s=5.0)
    answered.first_token(5.5)
    answered.settle(Usage(2000, 11, 0), 6.0, answer=b"x" * 900)
    answered.release(6.0)
    place(there.router, ask(b"Never computed. " * 300), now_s=6.0).release(6.1)
    still_open = place(there.router, ask(TEXTS[3]), now_s=6.5)
    other.hearing.apply(*there.batch(), 7.0)
    if is_removed:
        here.hearing.remove_stale(9.0, 9.0)
    if is_stated:
        there.voice.publish_snapshot()
    still_open.first_token(9.5)
    behind = there.batch()
    assert other.hearing.apply(*behind, 9.5)
    assert not here.hearing.apply(*behind, 9.5)
    assert (here.hearing.missed_s(there.name, 9.5), other.hearing.missed_s(there.name, 9.5)) == (7.5, 0.0)
    before = other.router.index.insert(0, ask(b"A turn is counted. " * 9).prompt).turn
    for _ in range(2):
        there.voice.publish_missed(7.5, 10.0)
        again = there.batch()
        assert here.hearing.apply(*again, 10.0)
        assert other.hearing.apply(*again, 10.0)
    assert other.router.index.insert(0, ask(b"A turn is counted. " * 9).prompt).turn == before + 1
    assert loads(here.router) == loads(there.router) == loads(other.router) != {}
    grown = TEXTS[0] + b"x" * 900
    assert held(here, grown) == held(there, grown) == held(other, grown) != []
    assert held(here, TEXTS[3]) == held(there, TEXTS[3]) != []
    assert held(here, b"Never computed. " * 300) == []
    assert (here.hearing.missed_s(there.name, 11.0), here.hearing.missed_s(99, 11.0)) == (0.0, 0.0)
    assert here.hearing.rejected == other.hearing.rejected == 0


def test_placements_are_sent_again_in_parts_and_kept_in_bounds() -> None:
    """A batch holds some of them and asks for the next; the too old and the too many are not kept."""
    woken: list[int] = []
    router = router_of(2)
    voice = UpdatePublisher(lambda: woken.append(1))
    router.subscribe(voice)
    for number in range(RESENT_AT_ONCE + 10):
        serve(router, ask(b"%d" % number * 200), now_s=number / 10)
    voice.take()
    woken.clear()
    voice.publish_missed(9.0, 10.0)
    sent = [[update for update in voice.take() if isinstance(update, PlacedUpdate)] for _ in range(3)]
    assert ([len(each) for each in sent], len(woken)) == ([RESENT_AT_ONCE, 10, 0], 2)
    assert all(update.is_resent for each in sent for update in each)
    serve(router, ask(b"later" * 200), now_s=10.0 + RESEND_S)
    voice.take()
    voice.publish_missed(1e9, 11.0 + RESEND_S)
    assert len([update for update in voice.take() if isinstance(update, PlacedUpdate)]) == 1
    huge = Prompt(tuple(range(MAX_RESEND_BLOCKS // 2 + 1)), BLOCK_ENDS, BLOCK_ENDS[MAX_RESEND_BLOCKS // 8])
    for number in range(3):
        charge = Charge(0, 10_000 + number, 1.0, 1.0, 1.0, 1, charged_s=100.0)
        voice.placed(replace(ask(), prompt=huge), router.fleet.pods[0].engines[0], charge)
    voice.take()
    voice.publish_missed(10.0, 100.0)
    assert [update.charge.number for update in voice.take() if isinstance(update, PlacedUpdate)] == [10_002]


def resent_numbers(voice: UpdatePublisher) -> list[int]:
    sent = voice.take()
    while more := voice.take():
        sent += more
    return [update.charge.number for update in sent if isinstance(update, PlacedUpdate)]


def test_what_is_requested_without_end_is_sent_again_a_few_times() -> None:
    """Less and less often; what a peer has missed meanwhile follows without being asked for again."""
    router = router_of(2)
    voice = UpdatePublisher()
    router.subscribe(voice)
    for number in range(20):
        serve(router, ask(b"%d" % number * 200), now_s=number / 10)
    voice.take()
    counts = list[int]()
    for beat in range(4 * int(RESEND_S)):
        voice.publish_missed(1e9, 2.0 + beat / 4)
        counts.append(len(resent_numbers(voice)))
    assert counts[0] == 20
    assert sum(counts) <= 4 * 20
    serve(router, ask(b"new" * 200), now_s=100.0)
    voice.take()
    voice.publish_missed(5.0, 101.0)
    assert len(resent_numbers(voice)) == 1
    voice.publish_missed(0.5, 101.5)
    assert resent_numbers(voice) == []
    voice.publish_missed(0.0, 101.0 + RESEND_PAUSE_S)
    assert len(resent_numbers(voice)) == 1
    voice.publish_missed(0.0, 150.0)
    assert resent_numbers(voice) == []


def test_answers_of_long_streams_take_no_room_of_what_is_sent_again() -> None:
    """The placement of a stream of more than a minute is not kept any more when its answer ends."""
    router = router_of(2)
    voice = UpdatePublisher()
    router.subscribe(voice)
    streams = [place(router, ask(b"%d" % number * 200), now_s=0.0) for number in range(5)]
    serve(router, ask(b"later" * 200), now_s=1.0 + RESEND_S)
    kept = voice._recent_blocks
    for stream in streams:
        stream.first_token(0.5)
        stream.settle(Usage(200, 1400, 0), 70.0, answer=b"A long answer. " * 500)
        stream.release(70.0)
    assert voice._recent_blocks == kept


def test_a_batch_reported_twice_or_late_is_passed_over() -> None:
    """Redis may hold a batch twice after a time-out; one that was overtaken says nothing new."""
    here, there = pair()
    place(there.router, ask())
    batch = there.batch()
    here.hearing.apply(*batch, 0.0)
    here.hearing.apply(*batch, 0.0)
    here.hearing.apply(there.name, 0, [EndedUpdate(1)], 0.0)
    assert loads(here.router) == loads(there.router)


def test_who_falls_silent_is_forgotten() -> None:
    """Its charges go, those of others stay; when it speaks again it is heard again."""
    here, there = pair()
    other = talker(3, 3)
    place(there.router, ask())
    place(other.router, ask(TEXTS[3]), draw=0.5)
    here.hearing.apply(*there.batch(), 1.0)
    here.hearing.apply(*other.batch(), 9.0)
    assert here.hearing.remove_stale(5.0, 10.0) == [there.name]
    assert loads(here.router) == loads(other.router)
    there.voice.publish_snapshot()
    assert here.hearing.apply(*there.batch(), 11.0)
    here.hearing.remove(other.name, 11.0)
    assert loads(here.router) == loads(there.router)
    here.hearing.remove(4711, 11.0)


def test_a_pod_removed_here_gets_its_slot_back_when_others_have_ended_there() -> None:
    """A slot is not given to another pod while another router's request is charged to it."""
    here, there = pair(1)
    placement = place(there.router, ask())
    tell_all([here, there], 0.0)
    here.router.remove_pod("http://0")
    add_pod(here.router, "http://new")
    assert here.router.fleet.slot_count == 2
    placement.release(1.0)
    tell_all([here, there], 1.0)
    add_pod(here.router, "http://newer")
    assert here.router.fleet.slot_count == 2


class Loss(RuleBasedStateMachine):
    """Two routers act; what they say reaches a third in order, or not at all."""

    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.talkers = [talker(1, 3), talker(2, 3)]
        self.here = router_of(3)
        self.hearing = ReplicaState(self.here)

    @rule(which=st.integers(0, 1), text=st.sampled_from(TEXTS), draw=st.floats(0, 0.99))
    def place(self, which: int, text: bytes, draw: float) -> None:
        one = self.talkers[which]
        one.placements.append(place(one.router, ask(text), now_s=self.now_s, draw=draw))

    @rule(which=st.integers(0, 1), at=st.integers(0, 100), settles=st.booleans(), ends=st.booleans())
    def go_on(self, which: int, at: int, settles: bool, ends: bool) -> None:
        one = self.talkers[which]
        if one.placements:
            placement = one.placements[at % len(one.placements)]
            placement.first_token(self.now_s)
            if settles:
                placement.settle(Usage(900, 20, 300), self.now_s, answer=b"And so on. " * 40, response_id="r")
            if ends:
                one.placements.remove(placement)
                placement.release(self.now_s)

    @rule(which=st.integers(0, 1), is_lost=st.booleans(), is_stated=st.booleans())
    def speak(self, which: int, is_lost: bool, is_stated: bool) -> None:
        one = self.talkers[which]
        if is_stated:
            one.voice.publish_snapshot()
        batch = one.batch()
        if not is_lost:
            self.hearing.apply(*batch, self.now_s)

    @rule(which=st.integers(0, 1))
    def forget(self, which: int) -> None:
        self.hearing.remove(self.talkers[which].name, self.now_s)

    @rule()
    def pass_time(self) -> None:
        self.now_s += 1.0

    @rule()
    def lose_a_pod(self) -> None:
        self.here.remove_pod("http://1")
        add_pod(self.here, "http://1")

    @invariant()
    def nothing_is_negative(self) -> None:
        if hasattr(self, "here"):
            ledger = self.here.ledger
            assert min([*ledger.running, *ledger.prefill_tokens, *ledger.kv_tokens]) >= -1e-6

    def teardown(self) -> None:
        """After everybody has stated what is open, this is what is on the ledger; after all are forgotten, nothing.
        A snapshot that shows a gap itself is followed by another.
        """
        if not hasattr(self, "here"):
            return
        here, hearing = router_of(3), self.hearing
        for one in self.talkers:
            one.voice.publish_snapshot()
            batch, gaps = one.batch(), hearing.gaps
            if not hearing.apply(*batch, self.now_s):
                assert hearing.gaps == gaps + 1
                one.voice.publish_snapshot()
                batch = one.batch()
                assert hearing.apply(*batch, self.now_s)
            ReplicaState(here).apply(*batch, self.now_s)
        # Slots that were freed while something was charged to them keep that: it is the sum over all slots that counts.
        for column in ("running", "prefill_tokens", "kv_tokens"):
            assert sum(getattr(self.here.ledger, column)) == pytest.approx(sum(getattr(here.ledger, column)))
        for one in self.talkers:
            hearing.remove(one.name, self.now_s)
        assert self.here.ledger.is_empty()


TestLoss = Loss.TestCase

NUMBERS = st.integers(0, 2)
ANY_FLOAT = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -1.0, 1e308, inf, nan]))
ANY_COUNT = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(0, 4))
CHARGES = st.builds(OpenRequest, NUMBERS, st.just("http://0"), *[st.just(100.0)] * 3, st.just(1)) | st.builds(
    OpenRequest,
    NUMBERS,
    st.sampled_from(["http://0", "http://1", "http://0#3", "", "nobody"]),
    ANY_FLOAT,
    ANY_FLOAT,
    ANY_FLOAT,
    ANY_COUNT,
    st.booleans(),
)
PROMPTS = st.builds(Prompt, st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple), st.just(BLOCK_ENDS), ANY_COUNT)
WORDS: st.SearchStrategy[StateUpdate] = st.one_of(
    st.builds(PlacedUpdate, CHARGES, st.sampled_from([MODEL, "strange", ""]), PROMPTS, st.none() | ANY_COUNT),
    st.builds(FirstTokenUpdate, NUMBERS, ANY_FLOAT, ANY_FLOAT),
    st.builds(
        SettledUpdate,
        NUMBERS,
        ANY_COUNT,
        st.none() | ANY_COUNT,
        ANY_COUNT,
        st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple),
        ANY_COUNT,
        st.none() | ANY_COUNT,
        ANY_FLOAT,
        st.none() | ANY_FLOAT,
    ),
    st.builds(EndedUpdate, NUMBERS),
    st.builds(Snapshot, st.lists(CHARGES, max_size=4).map(tuple)),
)


@given(st.lists(st.tuples(st.integers(0, 2), ANY_COUNT, st.lists(WORDS, max_size=6)), max_size=8))
def test_nothing_that_can_be_stated_raises(batches: list[tuple[int, int, list[StateUpdate]]]) -> None:
    """Unknown engines and models, numbers that cannot be: passed over; we decide as before, and owe nothing after."""
    router = router_of(2)
    hearing = ReplicaState(router)
    for name, number, words in batches:
        hearing.apply(name, number, words, 1.0)
        placement = serve(router, ask(), now_s=1.0)
        assert all(0 < pace < inf for pace in (*router.costs.seconds_per_token, *router.costs.step_base_s))
        assert all(0 <= router.index.size_of(slot) < inf for slot in range(2))
        assert 0 < placement.predicted.ttft_s < inf
    for name in range(3):
        hearing.remove(name, 2.0)
    assert router.ledger.is_empty()


def test_origins_cannot_be_invented_without_end() -> None:
    """Beyond a bound new ones are not heard."""
    hearing = ReplicaState(router_of(1))
    for name in range(MAX_REPLICAS + 5):
        hearing.apply(name, 1, [], 0.0)
    assert (hearing.replica_count, hearing.rejected) == (MAX_REPLICAS, 5)


def test_the_history_makes_warm_and_charges_nothing() -> None:
    """Prompts, sessions and paces of old news are known; what was open in them is nowhere."""
    old, joiner = talker(1, 3), talker(2, 3)
    first = serve(old.router, ask(session="talk"), draw=0.5)
    begun = place(old.router, ask(b"Call me Ishmael. " * 300), now_s=9.0)
    begun.first_token(10.0)
    bygone = HistoryReplay(joiner.router)
    bygone.apply(*old.batch())
    bygone.close()
    assert joiner.router.ledger.is_empty()
    assert loads(joiner.router) == {}
    second = place(joiner.router, ask(TALK + b"And then?", session="talk"))
    assert second.engine.name == first.engine.name
    assert second.predicted.cached_tokens > 0.9 * second.predicted.prompt_tokens
    assert joiner.router.costs.seconds_per_token == pytest.approx(old.router.costs.seconds_per_token)
    assert joiner.router.index.size_of(begun.engine.slot) >= begun.request.prompt.covered
    assert bygone.applied > 3


def test_what_never_began_in_the_history_is_not_warm() -> None:
    """A prompt that was placed and not seen to be computed is not believed to be there."""
    old, joiner = talker(1, 1), talker(2, 1)
    place(old.router, ask())
    bygone = HistoryReplay(joiner.router)
    bygone.apply(*old.batch())
    assert joiner.router.index.size_of(0) > 0
    bygone.close()
    assert joiner.router.index.size_of(0) == 0


def test_a_slot_taken_later_is_no_trouble() -> None:
    """Pods may come while the past is heard."""
    old, joiner = talker(1, 3), talker(2, 1)
    bygone = HistoryReplay(joiner.router)
    placement = place(old.router, ask())
    placement.settle(Usage(2000, 5, 0), 1.0)
    placement.release(1.0)
    bygone.apply(*old.batch())
    joiner.router.remove_pod("http://0")
    for number in range(1, 5):
        place(old.router, ask(b"%d" % number * 2000))
    bygone.apply(*old.batch())
    bygone.close()
    assert joiner.router.ledger.is_empty()


def missing_s(one: Talker) -> float | None:
    """Since when one of its peers is missing."""
    return one.router.peers_missing_s


def missing_peer() -> tuple[Talker, Talker]:
    """One that has not heard the other for half a second, while that has a request open."""
    here, there = pair()
    there.voice.publish(QueueUpdate(()))
    place(there.router, ask(), now_s=0.0)
    here.hearing.apply(*there.batch(), 0.0)
    assert here.hearing.remove_stale(-5.0, 0.3) == []
    assert missing_s(here) is None
    here.hearing.remove_stale(-4.5, 0.5)
    return here, there


def receive(here: Talker, there: Talker, from_s: float, to_s: float) -> None:
    """Have one receive a batch of the other every tenth of a second."""
    for tenths in range(1, round(10 * (to_s - from_s)) + 1):
        now_s = round(from_s + tenths / 10, 1)
        here.hearing.apply(*there.batch(), now_s)
        here.hearing.remove_stale(now_s - 5.0, now_s)


def test_a_silent_peer_with_open_requests_is_missing_until_it_sends() -> None:
    """After some tenths of a second, and until it has sent for as long as it was silent: what it sends first may have
    been held back. One that sends as earlier versions do is missing after more.
    """
    here, there = missing_peer()
    assert missing_s(here) is not None
    here.hearing.apply(*there.batch(), 0.7)
    here.hearing.remove_stale(-4.0, 0.7)
    assert missing_s(here) is not None
    receive(here, there, 0.7, 1.4)
    assert missing_s(here) is None
    assert here.router.peers_found_s == 1.4
    old, other = pair()
    place(other.router, ask(), now_s=0.0)
    old.hearing.apply(*other.batch(), 0.0)
    old.hearing.remove_stale(-4.0, 1.0)
    assert missing_s(old) is None
    old.hearing.remove_stale(-3.0, 2.0)
    assert missing_s(old) == 2.0


def timed_pair() -> tuple[Talker, Talker]:
    """Two of which one has heard the other, which has a request open and whose clock is a thousand seconds ahead."""
    here, there = pair()
    there.voice.publish(QueueUpdate(()))
    place(there.router, ask(), now_s=0.0)
    here.hearing.apply(*there.batch(), 0.0, 1000.0)
    return here, there


def test_a_peer_that_paused_is_missing_no_longer_than_its_pause() -> None:
    """Its first batch has just been sent: nothing was held back, however often it pauses."""
    here, there = timed_pair()
    for second in range(1, 4):
        here.hearing.remove_stale(-5.0, second - 0.4)
        assert missing_s(here) == second - 0.4
        here.hearing.apply(*there.batch(), second - 0.3, second + 999.7)
        assert (missing_s(here), here.router.peers_found_s) == (None, second - 0.3)


def test_what_was_held_back_is_old_until_a_batch_comes_that_was_not() -> None:
    """Where batches tell when they were sent, as long as they took longer than others, and not for a fixed time."""
    here, there = timed_pair()
    here.hearing.remove_stale(-5.0, 1.0)
    for sent_s in (0.1, 0.4, 0.7):
        here.hearing.apply(*there.batch(), 1.2, 1000.0 + sent_s)
        assert missing_s(here) == 1.0
    placement = place(there.router, ask(b"held back " * 300), now_s=0.75)
    here.hearing.apply(*there.batch(), 1.2, 1000.75)
    assert sum(here.router.ledger.prefill_tokens) == 0
    here.hearing.apply(*there.batch(), 1.2, 1001.19)
    assert missing_s(here) is None
    placement.release(1.3)
    place(there.router, ask(b"of now " * 300), now_s=1.3)
    here.hearing.apply(*there.batch(), 1.31, 1001.3)
    assert sum(here.router.ledger.prefill_tokens) > 0


@pytest.mark.parametrize("jump_s", [-1e6, -30.0, 30.0, 1e6])
@pytest.mark.parametrize("is_catching_up", [False, True])
def test_no_peer_is_missing_for_long_when_a_clock_jumps(jump_s: float, *, is_catching_up: bool) -> None:
    """Its batches seem to be held back, or to come before they were sent; that is what is normal a moment later."""
    here, there = timed_pair()
    if is_catching_up:
        here.hearing.remove_stale(-5.0, 1.0)
        here.hearing.apply(*there.batch(), 1.0, 1000.1)
        assert missing_s(here) == 1.0
    for tenths in range(11, 10 * int(CATCH_UP_S) + 14):
        here.hearing.apply(*there.batch(), tenths / 10, 1000.0 + jump_s + tenths / 10)
        here.hearing.remove_stale(-5.0, tenths / 10)
    assert missing_s(here) is None
    for second in (4, 5):
        here.hearing.apply(*there.batch(), second, 1000.0 + jump_s + second)
        assert missing_s(here) is None


def test_what_a_missing_peer_had_open_counts_as_load_of_others() -> None:
    """Until a scrape shows what is there. It is no longer missing once scrapes show nothing, or after long."""
    here, _ = missing_peer()
    slot = max(range(3), key=here.router.ledger.running.__getitem__)
    here.hearing.remove_stale(1.0, 6.0)
    assert here.router.ledger.external[slot].running == 1.0
    assert here.router.ledger.is_empty()
    here.router.observe_load(slot, ExternalLoad(9.0, at_s=20.0))
    here.hearing.remove_stale(15.0, 20.0)
    assert missing_s(here) == 0.5
    here.router.observe_load(slot, ExternalLoad(1.0, at_s=21.0))
    here.hearing.remove_stale(16.0, 21.0)
    assert missing_s(here) is None


def test_the_prefill_of_a_missing_peer_delays_nothing() -> None:
    """Its first tokens are out, unseen, or come soon: its requests only decode, until its snapshot says otherwise."""
    here, there = missing_peer()
    assert sum(here.router.ledger.prefill_tokens) == 0
    assert sum(here.router.ledger.running) == 1
    there.voice.publish_snapshot()
    here.hearing.apply(*there.batch(), 0.7)
    assert loads(here.router) == loads(there.router)
    assert sum(here.router.ledger.prefill_tokens) > 0


def test_what_a_peer_that_is_back_has_open_is_no_longer_load_of_others() -> None:
    """The last scrape had seen it there: it would count twice until the next. It has streamed since, and its prefill
    delays nothing.
    """
    here, there = pair()
    placement = place(there.router, ask(), now_s=0.0)
    slot = placement.engine.slot
    here.hearing.apply(*there.batch(), 0.0)
    here.hearing.remove_stale(1.0, 6.0)
    here.router.observe_load(slot, ExternalLoad(3.0, kv_tokens=1e6, at_s=6.5))
    placement.first_token(6.9)
    there.voice.take()
    there.voice.publish_snapshot()
    here.hearing.apply(*there.batch(), 7.0)
    ledger = here.router.ledger
    assert (ledger.running[slot], ledger.external[slot].running) == (1, 2.0)
    assert 0 < ledger.external[slot].kv_tokens < 1e6
    assert ledger.prefill_tokens[slot] == ledger.queued_s(tuple, 7.0)[slot] == 0


def test_of_many_busy_peers_all_are_missing_sooner() -> None:
    """Some batch would have come: when none of them is heard, the link is broken. One that is heard speaks for it."""
    here, *others = [talker(number, 3) for number in range(1, 17)]
    for other in others:
        other.voice.publish(QueueUpdate(()))
        place(other.router, ask(), now_s=0.0)
        here.hearing.apply(*other.batch(), 0.0)
    here.hearing.remove_stale(-5.0, MIN_SILENCE_S)
    assert missing_s(here) is None
    here.hearing.apply(*others[0].batch(), 0.15)
    here.hearing.remove_stale(-5.0, 0.2)
    assert missing_s(here) is None
    here.hearing.remove_stale(-5.0, 0.3)
    assert missing_s(here) == 0.3


def test_a_peer_that_has_left_is_not_missing() -> None:
    """It has stated that nothing is open."""
    here, there = pair()
    placement = place(there.router, ask(), now_s=0.0)
    placement.release(0.1)
    here.hearing.apply(*there.batch(), 0.1)
    here.hearing.remove_stale(5.0, 10.0)
    assert missing_s(here) is None


def test_nothing_is_learned_beside_missing_peers() -> None:
    """Neither while they are missing nor from what was placed before they were found."""
    here, there = missing_peer()
    router = here.router
    before = list(router.costs.seconds_per_token), list(router.costs.step_base_s)

    def slow(now_s: float) -> None:
        placement = place(router, ask(b"slow " * 500), now_s=now_s)
        placement.first_token(now_s + 9.0)
        placement.settle(Usage(600, 100, 0), now_s + 90.0)
        placement.release(now_s + 90.0)

    slow(1.0)
    early = place(router, ask(b"early " * 500), now_s=100.0)
    here.hearing.apply(*there.batch(), 101.0)
    here.hearing.remove_stale(96.0, 101.0)
    assert missing_s(here) is not None
    receive(here, there, 101.0, 101.0 + CATCH_UP_S)
    assert missing_s(here) is None
    early.first_token(109.0)
    assert (router.costs.seconds_per_token, router.costs.step_base_s) == before
    slow(104.0)
    assert router.costs.seconds_per_token != before[0]


def test_what_was_held_back_delays_nothing() -> None:
    """Half a minute of prompts that arrive at once have been computed long ago: those still open only decode, until a
    snapshot says otherwise.
    """
    here, there = missing_peer()
    for number in range(30):
        placement = place(there.router, ask(b"%d held back " % number * 300), now_s=1.0 + number)
        if number < 28:
            placement.first_token(1.5 + number)
            placement.release(3.0 + number)
    held, there_ledger = there.batch(), there.router.ledger
    here.hearing.apply(*held, 31.0)
    ledger = here.router.ledger
    assert sum(ledger.running) == sum(there_ledger.running) == 3
    assert sum(ledger.prefill_tokens) == 0
    there.voice.publish_snapshot()
    here.hearing.apply(*there.batch(), 31.1)
    assert sum(ledger.prefill_tokens) == sum(there_ledger.prefill_tokens) > 0


def test_what_was_held_back_teaches_nothing() -> None:
    """What an engine had cached half a minute ago says nothing of now; what comes later counts again."""
    here, there = pair(1)

    def cold_again(now_s: float) -> float:
        """The capacity that `here` believes in after an engine did not find a prompt that should be cached."""
        placement = place(there.router, ask(), now_s=now_s)
        placement.first_token(now_s + 0.1)
        placement.settle(Usage(2000, 5, cached_tokens=0), now_s + 0.2)
        placement.release(now_s + 0.2)
        here.hearing.apply(*there.batch(), 30.0 + now_s)
        return here.router.index._engines[0].cache.capacity

    there.voice.publish(QueueUpdate(()))
    serve(there.router, ask())
    place(there.router, ask(TEXTS[3]))
    here.hearing.apply(*there.batch(), 0.0)
    before = here.router.index._engines[0].cache.capacity
    assert cold_again(1.0) == before
    for tenths in range(10 * int(CATCH_UP_S) + 1):
        here.hearing.apply(*there.batch(), 31.0 + tenths / 10)
    assert cold_again(1.1 + CATCH_UP_S) < before
