"""A request on an engine: what its moments teach, and that everything comes back whatever happens, in any order."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.ledger import ExternalLoad
from routing.pods import EngineShape
from routing.reading import read_request
from routing.reading.requests import DefaultParsePolicy
from routing.rejection import RequestRejected
from routing.request import Api, Request, Usage
from tests.routing.engines import MODEL, TALK, add_pod, ask, place, router_of, serve

URLS = [f"http://{number}" for number in range(3)]


class AnyDay(RuleBasedStateMachine):
    """Requests and pods that come, change and go in any order."""

    placements: Bundle[Placement] = Bundle("placements")

    def __init__(self) -> None:
        super().__init__()
        self.router: Router = router_of(0)
        self.now_s = 0.0
        self.open: list[Placement] = []

    @initialize()
    def begin(self) -> None:
        add_pod(self.router, URLS[0])

    @rule(url=st.sampled_from(URLS), ranks=st.sampled_from([(None,), (0, 1)]), kv_tokens=st.sampled_from([None, 500]))
    def add_or_reshape(self, url: str, ranks: tuple[int | None, ...], kv_tokens: int | None) -> None:
        if self.router.fleet.pod(url):
            self.router.reshape_pod(url, [EngineShape(rank, kv_tokens=kv_tokens) for rank in ranks])
        else:
            add_pod(self.router, url, ranks=ranks, kv_tokens=kv_tokens)

    @rule(url=st.sampled_from(URLS))
    def remove(self, url: str) -> None:
        self.router.remove_pod(url)

    @rule(url=st.sampled_from(URLS))
    def restart(self, url: str) -> None:
        self.router.clear_caches(url)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(load=st.floats(0, 50), place=st.integers(0, 5))
    def scrape(self, load: float, place: int) -> None:
        if place < self.router.fleet.slot_count:
            self.router.observe_load(place, ExternalLoad(load, 0, load * 100, self.now_s))

    @rule(
        target=placements,
        talk=st.integers(0, 900),
        other=st.sampled_from([b"", b"a", b"b"]),
        session=st.sampled_from([None, "s"]),
        sequences=st.sampled_from([1, 3]),
        draw=st.floats(0, 1, exclude_max=True),
    )
    def place(self, talk: int, other: bytes, session: str | None, sequences: int, draw: float) -> Placement | Any:
        request = ask(other + TALK[:talk], session=session, sequences=sequences)
        try:
            placement = place(self.router, request, now_s=self.now_s, draw=draw)
        except RequestRejected:
            assert not self.router.fleet.eligible(MODEL).engines
            return None
        self.open.append(placement)
        return placement

    @rule(placement=placements)
    def first_token(self, placement: Placement | None) -> None:
        if placement is not None and placement in self.open:
            placement.first_token(self.now_s)

    @rule(placement=placements, at=st.integers(0, 5))
    def move(self, placement: Placement | None, at: int) -> None:
        engines = [engine for pod in self.router.fleet.pods for engine in pod.engines]
        if placement is not None and engines:
            placement.move(engines[at % len(engines)], self.now_s)

    @rule(
        placement=consumes(placements),
        usage=st.none() | st.builds(Usage, st.integers(0, 5000), st.integers(0, 500), st.none() | st.integers(0, 5000)),
        answer=st.binary(max_size=300),
        response_id=st.sampled_from([None, "resp"]),
        settled=st.booleans(),
    )
    def end(
        self, placement: Placement | None, usage: Usage | None, answer: bytes, response_id: str | None, settled: bool
    ) -> None:
        if placement is None or placement not in self.open:
            return
        self.open.remove(placement)
        if settled:
            placement.settle(usage, self.now_s, answer=answer, response_id=response_id)
        placement.release(self.now_s)
        placement.release(self.now_s)

    @invariant()
    def the_ledger_is_what_is_open(self) -> None:
        """Per slot the sum of the open requests, and nothing for slots without any."""
        ledger = self.router.ledger
        for slot in range(self.router.fleet.slot_count):
            there = [placement for placement in self.open if placement.engine.slot == slot]
            assert ledger.running[slot] == sum(placement.request.sequences for placement in there)
            if not there:
                assert ledger.kv_tokens[slot] == ledger.prefill_tokens[slot] == 0
        assert self.open or ledger.is_empty()

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        """Slots of living engines, of gone ones with open requests, and free ones are three kinds."""
        fleet = self.router.fleet
        living = [engine.slot for pod in fleet.pods for engine in pod.engines]
        retired, free = self.router.retired, fleet._free_slots
        assert sorted([*living, *retired, *free]) == list(range(fleet.slot_count))
        assert all(self.router.ledger.running[slot] for slot in retired)
        assert not any(self.router.ledger.running[slot] for slot in free)

    @invariant()
    def only_living_engines_are_warm(self) -> None:
        """Nothing is held for an engine that is gone; what is held agrees with who holds it."""
        index, fleet = self.router.index, self.router.fleet
        living = {engine.slot for pod in fleet.pods for engine in pod.engines}
        assert set(index._engines) == living
        held = {slot: set(engine.cache) for slot, engine in index._engines.items()}
        for slot in range(fleet.slot_count):
            assert held.get(slot, set()) == {block for block, mask in index._holders.items() if mask >> slot & 1}

    @invariant()
    def engines_are_priced_sanely(self) -> None:
        """Learned seconds stay positive and finite."""
        costs = self.router.costs
        for column in (costs.prefill_overhead_s, costs.seconds_per_token, costs.step_base_s, costs.step_per_sequence_s):
            assert all(0 < value < float("inf") for value in column)

    def teardown(self) -> None:
        for placement in self.open:
            placement.release(self.now_s)
        assert self.router.ledger.is_empty()
        assert not self.router.retired
        for url in URLS:
            self.router.remove_pod(url)
        assert len(self.router.index) == 0
        assert len(self.router.fleet._free_slots) == self.router.fleet.slot_count


TestAnyDay = AnyDay.TestCase
TestAnyDay.settings = settings(stateful_step_count=40)


@pytest.fixture
def router() -> Router:
    return router_of(1)


def test_a_first_token_is_counted_once(router: Router) -> None:
    """Told twice it is the first time that counts, and its seconds are learned."""
    placement = place(router, ask())
    before = router.costs.seconds_per_token[0]
    placement.first_token(0.5)
    learned = router.costs.seconds_per_token[0]
    placement.first_token(9.0)
    assert placement.first_token_s == 0.5
    assert before != learned == router.costs.seconds_per_token[0]
    assert router.ledger.prefill_tokens == [0.0]
    assert router.ledger.running == [1]


def experienced(router: Router) -> float:
    """Let a router see many prefills. Return the seconds per token that it has learned."""
    for turn in range(60):
        placement = place(router, ask(b"%d" % turn + TALK), now_s=float(turn))
        placement.first_token(turn + placement.predicted.ttft_s)
        placement.settle(Usage(2000, 1, 0), turn + 0.9)
        placement.release(turn + 0.9)
    return router.costs.seconds_per_token[0]


@pytest.mark.parametrize(("cached", "is_slow"), [(0, False), (1980, True), (None, True)])
def test_a_prefix_that_was_evicted_does_not_make_an_engine_slow(
    router: Router, cached: int | None, is_slow: bool
) -> None:
    """A first token that comes late is learned when the engine has said how much it held, and as what it was."""
    learned = experienced(router)
    for turn in range(20):
        late = place(router, ask(b"%d" % (40 + turn) + TALK), now_s=100.0 + turn)
        assert late.predicted.own_prefill_s < 0.1, "it is believed to be cached"
        before = router.costs.seconds_per_token[0]
        late.first_token(late.placed_s + 2000 * learned)
        assert router.costs.seconds_per_token[0] == before
        late.settle(Usage(2000, 1, cached), late.placed_s + 0.9)
        late.release(late.placed_s + 0.9)
    assert (router.costs.seconds_per_token[0] > 1.01 * learned) == is_slow


def test_what_waited_for_an_evicted_prefix_teaches_nothing(router: Router) -> None:
    """One slow prefill is one observation, however many wait for it."""
    learned = experienced(router)
    late, behind = (place(router, ask(prompt + TALK), now_s=100.0) for prompt in (b"58", b"59"))
    late.first_token(160.0)
    behind.first_token(160.1)
    behind.settle(Usage(2000, 1, 1980), 161.0)
    assert router.costs.seconds_per_token[0] == learned


def test_a_request_without_a_first_token_leaves_no_cached_prefix(router: Router) -> None:
    """A pod that failed before it began is not believed to hold the prompt."""
    place(router, ask()).release(1.0)
    assert place(router, ask(), now_s=2.0).predicted.cached_tokens == 0


def test_a_request_cut_after_its_first_token_leaves_its_prompt_warm(router: Router) -> None:
    """A client that goes away later takes nothing back."""
    serve(router, ask())
    assert place(router, ask(), now_s=2.0).predicted.cached_tokens > 0


def test_an_answer_in_one_piece_shows_that_its_prompt_was_computed(router: Router) -> None:
    """Not streamed, so no first token was seen: the prompt is warm all the same, and no time is learned from it."""
    placement = place(router, ask())
    before = router.costs.seconds_per_token[0], router.costs.step_base_s[0]
    placement.settle(Usage(2000, 50, 0), 30.0)
    placement.release(30.0)
    assert (router.costs.seconds_per_token[0], router.costs.step_base_s[0]) == before
    assert place(router, ask(), now_s=31.0).predicted.cached_tokens > 0


def test_the_next_turn_is_measured_exactly(router: Router) -> None:
    """What the engine counted is what is predicted of the next turn, its answer included."""
    turn = place(router, ask(TALK))
    turn.first_token(0.5)
    answer = b"A far, far better thing that I do. " * 40
    turn.settle(Usage(1777, 321, 0), 1.0, answer=answer)
    turn.release(1.0)
    following = place(router, ask(TALK + answer + b"Why?"), now_s=2.0)
    assert following.predicted.prompt_tokens == pytest.approx(1777 + 321 + 1, abs=2)
    assert following.predicted.cached_tokens == (1777 + 321) // 16 * 16


def test_what_the_engine_says_it_reused_corrects_us(router: Router) -> None:
    """Believed warm and found cold: forgotten at once."""
    serve(router, ask(TALK))
    for cached, is_warm in ((2000, True), (0, False)):
        placement = place(router, ask(TALK + b"?"), now_s=1.0)
        placement.settle(Usage(2000, 1, cached), 2.0)
        trace = placement._trace
        placement.release(2.0)
        assert bool(router.index._engines[0].cache.capacity == 400_000) == is_warm
        assert trace.found.cached_blocks


def test_a_pod_that_reports_no_cached_tokens_corrects_nothing(router: Router) -> None:
    """Unknown is not zero."""
    serve(router, ask(TALK))
    placement = place(router, ask(TALK), now_s=1.0)
    placement.settle(Usage(2000, 1, None), 2.0)
    placement.release(2.0)
    assert place(router, ask(TALK), now_s=3.0).predicted.cached_tokens > 0
    assert router.index._engines[0].cache.capacity == 400_000


def read(text: bytes = TALK, tenant: str | None = None, **fields: Any) -> Request:
    """Return a request as its client's body is read."""
    body = json.dumps({"model": MODEL, "prompt": text.decode(), "stream": True} | fields).encode()
    return read_request(Api.COMPLETIONS, body, request_id="r", terms=DefaultParsePolicy(name=tenant)).request


def test_a_beam_search_teaches_no_times(router: Router) -> None:
    """All of its answer comes at once and late: its engine is neither slow at prompts nor quick at tokens."""
    learned, step_s = experienced(router), router.costs.step_base_s[0]
    for turn in range(100, 110):
        placement = place(router, read(b"%d" % turn + TALK * 10, use_beam_search=True), now_s=float(turn * 100))
        placement.first_token(turn * 100 + 60.0)
        placement.settle(Usage(20_000, 500, 0), turn * 100 + 60.001)
        placement.release(turn * 100 + 60.001)
    assert router.costs.seconds_per_token[0] == learned
    assert router.costs.step_base_s[0] == step_s


@pytest.mark.parametrize(
    "fields", [{"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}, {"prompt": [TALK.decode(), "x"]}]
)
def test_what_an_engine_does_not_look_up_wipes_out_no_ones_prefixes(router: Router, fields: dict[str, Any]) -> None:
    """Engines report nothing as cached for prompts whose log probabilities they compute, and of several only one."""
    serve(router, read(b"another tenant's " * 200))
    serve(router, read())
    held = len(router.index)
    for turn in range(1, 5):
        placement = place(router, read(**fields), now_s=float(turn))
        assert (placement.predicted.cached_tokens > 0) is ("prompt" in fields)
        placement.first_token(turn + 0.1)
        placement.settle(Usage(2000, 1, 0), turn + 0.5)
        placement.release(turn + 0.5)
    assert len(router.index) >= held
    assert router.index._engines[0].cache.capacity == 400_000
    assert place(router, read(b"another tenant's " * 200), now_s=9.0).predicted.cached_tokens > 0


@pytest.mark.parametrize(("fields", "tokens"), [({"truncate_prompt_tokens": 1}, 1), ({}, 600), ({}, 40_000)])
def test_what_one_tenant_sends_makes_no_other_ones_prompts_long_or_short(
    router: Router, fields: dict[str, Any], tokens: int
) -> None:
    """Neither prompts that it has cut, nor text of which a token is sixty bytes, or one."""
    for turn in range(40):
        placement = place(router, read(b"%d plain words " % turn * 200, "plain"), now_s=float(turn))
        placement.settle(Usage(placement.request.prompt.size // 4, 1, 0), turn + 0.5)
        placement.release(turn + 0.5)
    plain = read(b"quite another text " * 200, "plain")
    before = place(router, plain, now_s=50.0).predicted.prompt_tokens
    for turn in range(60, 100):
        placement = place(router, read(b"%d odd " % turn * 5_000, "odd", **fields), now_s=float(turn))
        placement.settle(Usage(tokens, 1, 0), turn + 0.5)
        placement.release(turn + 0.5)
    assert place(router, plain, now_s=200.0).predicted.prompt_tokens == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize(
    ("usage", "continues"), [(Usage(0, 0, 0), None), (Usage(90_000, 5, 80_000), "resp-1"), (None, None)]
)
def test_what_cannot_be_measured_teaches_nothing(router: Router, usage: Usage | None, continues: str | None) -> None:
    """No usage, an empty one, or one of a response whose earlier turns we have not seen."""
    request = ask(TALK, api=Api.RESPONSES, continues=continues)
    before = router.counters[MODEL].tokens(10_000)
    placement = place(router, request)
    placement.settle(usage, 1.0, answer=b"x" * 1000)
    placement.release(1.0)
    assert router.counters[MODEL].tokens(10_000) == before


def test_steps_are_learned_per_sequence(router: Router) -> None:
    """Three answers of 11 tokens each in one second are ten steps of a tenth of a second, not thirty."""
    learned = []
    for sequences in (1, 3):
        router = router_of(1)
        placement = place(router, ask(sequences=sequences))
        placement.first_token(0.1)
        placement.settle(Usage(2000, 11 * sequences, 0), 1.1)
        placement.release(1.1)
        learned.append(router.costs.step_base_s[0])
    assert learned[1] == pytest.approx(learned[0], rel=0.3)


def test_a_stored_response_is_found_again(router: Router) -> None:
    """Its id leads to its engine, also where usage was not told."""
    placement = place(router, ask(api=Api.RESPONSES))
    placement.settle(None, 1.0, response_id="resp-1")
    placement.release(1.0)
    assert router.responses.get("resp-1") == placement.engine.slot
    assert repr(placement) == "<Placement of r on http://0>"


def test_a_long_stream_keeps_only_what_its_receipt_shows() -> None:
    """A thousand candidates are let go at the first token, and the same few are shown before and after."""
    placements = [place(router_of(50), ask()) for _ in range(2)]
    shown = list(placements[0].top_candidates())
    placements[1].first_token(1.0)
    assert not any(hasattr(placement, "_decision") for placement in placements)
    assert list(placements[1].top_candidates()) == shown
    assert len(shown) == 8
    assert placements[1].candidate_count == 50


def test_what_another_engine_served_is_charged_and_learned_there() -> None:
    """The first holds nothing of it, is charged nothing, and nothing is learned of how fast either does prefill."""
    router = router_of(2)
    placed = place(router, ask(TALK, session="s"))
    first, other = placed.engine, next(pod.engines[0] for pod in router.fleet.pods if pod.url != placed.engine.pod)
    rates = list(router.costs.seconds_per_token)
    placed.move(other, 1.0)
    assert (router.ledger.running[first.slot], router.ledger.running[other.slot]) == (0, 1)
    placed.first_token(2.0)
    placed.settle(Usage(200, 5, 0), 3.0)
    placed.release(3.0)
    assert router.ledger.is_empty()
    assert list(router.costs.seconds_per_token) == rates
    assert router.sessions.get("s") == other.slot
    again = place(router, ask(TALK))
    assert (again.engine, again.predicted.cached_tokens > 0) == (other, True)
