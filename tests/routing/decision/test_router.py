"""The choice of an engine: where warm and load meet, who is left out, what a gone engine leaves behind."""

from collections import Counter
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.blocks import cut_prompt
from routing.candidates import Candidates, Scorer
from routing.decision.router import Router
from routing.facts import Role
from routing.ledger import ExternalLoad
from routing.pods import EngineShape
from routing.request import Api, Request, Usage
from scorers.decode_role import DecodeRolePenalty
from scorers.prefill_stall import PrefillStallCost
from scorers.registry import routings
from tests.routing.engines import MODEL, TALK, add_pod, ask, place, router_of, serve, texts_apart

# -- choosing ------------------------------------------------------------------------------------------------------


def test_the_next_turn_goes_where_the_conversation_is_warm() -> None:
    """Placed by prefix alone, wherever the first turn went and however ties are drawn."""
    router = router_of(4)
    first = serve(router, ask(TALK), draw=0.6)
    for draw in (0.0, 0.3, 0.9):
        again = place(router, ask(TALK + b"And then?"), now_s=3.0, draw=draw)
        assert again.engine == first.engine
        assert again.predicted.cached_tokens > 0.9 * again.predicted.prompt_tokens
        again.release(4.0)


def test_a_cold_prompt_goes_to_the_engine_with_less_to_do() -> None:
    """Of two cold engines the idle one."""
    router = router_of(2)
    busy = place(router, ask(texts_apart(1)))
    assert place(router, ask(texts_apart(2))).engine != busy.engine


def test_a_warm_engine_that_is_too_busy_is_passed_over() -> None:
    """Seconds decide: enough work ahead outweighs what is warm."""
    router = router_of(2)
    first = serve(router, ask(TALK))
    waiting = 0
    while place(router, ask(TALK + texts_apart(waiting)[:1000]), now_s=2.0).engine == first.engine:
        waiting += 1
        assert waiting < 100
    assert waiting > 2


def test_cold_prompts_spread_evenly() -> None:
    """Among equals the one chosen longest ago: nobody herds, whatever the draws."""
    router = router_of(5)
    chosen: Counter[str] = Counter()
    for number in range(50):
        placement = serve(router, ask(texts_apart(number)), now_s=number * 10.0, draw=(number * 0.37) % 1)
        chosen[placement.engine.pod] += 1
    assert set(chosen.values()) == {10}


def test_engines_that_are_nearly_equal_share_cold_prompts() -> None:
    """Half a percent faster is less than a prediction is good for: it must not draw every prompt to one engine."""
    router = router_of(4)
    router.costs.seconds_per_token[2] *= 0.995
    chosen: Counter[str] = Counter()
    for number in range(40):
        placement = place(router, ask(texts_apart(number) * 15), now_s=number * 1000.0)
        placement.release(number * 1000.0 + 1)
        chosen[placement.engine.pod] += 1
    assert set(chosen.values()) == {10}


def test_a_session_stays_with_an_engine_that_is_nearly_the_best() -> None:
    """Within what a prediction is good for, a long prompt too follows its session rather than its turn."""
    router = router_of(4)
    first = place(router, ask(texts_apart(0) * 20, session="a"), draw=0.7)
    first.release(1.0)
    for at in range(1, 4):
        again = place(router, ask(texts_apart(at) * 20, session="a"), now_s=1000.0 * at)
        assert again.engine == first.engine
        again.release(1000.0 * at + 1)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
def test_a_decision_can_be_replayed(draws: list[float]) -> None:
    """The same requests, times and draws give the same engines and predictions."""

    def run() -> list[tuple[str, object]]:
        router = router_of(4)
        made = [place(router, ask(texts_apart(at % 3)), now_s=at, draw=draw) for at, draw in enumerate(draws)]
        return [(placement.engine.name, placement.predicted) for placement in made]

    assert run() == run()


def test_the_draw_breaks_ties_among_who_was_never_chosen() -> None:
    """Several gateways that start at once do not all begin with the same engine."""
    chosen = {place(router_of(4), ask(), draw=draw).engine.slot for draw in (0.0, 0.25, 0.5, 0.999999)}
    assert chosen == {0, 1, 2, 3}


@given(st.sets(st.integers(0, 3), max_size=3), st.floats(0, 1, exclude_max=True))
def test_failed_pods_are_avoided(failed: set[int], draw: float) -> None:
    """However warm they are."""
    router = router_of(4)
    for _ in range(8):
        place(router, ask())
    avoid = frozenset(f"http://{number}" for number in failed)
    assert router.place(ask(), avoid=avoid, now_s=1.0, draw=draw).engine.pod not in avoid


def test_a_session_stays_while_all_else_is_equal() -> None:
    """A prompt too short to be warm anywhere follows its session, and only its own."""
    router = router_of(4)
    first = place(router, ask(b"Hi", session="a"), draw=0.7)
    first.release(0.1)
    for at in range(4):
        again = place(router, ask(b"Ho", session="a"), now_s=10.0 * at + 10)
        assert again.engine == first.engine
        again.release(10.0 * at + 10.1)
    assert place(router, ask(b"Ho", session="b"), now_s=99.0).engine != first.engine


def test_a_continued_response_goes_where_it_is_stored() -> None:
    """Through load and without warmth: only that pod has it."""
    router = router_of(3)
    first = place(router, ask(b"Hi", api=Api.RESPONSES), draw=0.5)
    first.settle(Usage(10, 5), 1.0, response_id="resp-1")
    first.release(1.0)
    for number in range(20):
        place(router, ask(texts_apart(number)), now_s=2.0, avoid="http://0" if first.engine.slot else "http://2")
    assert place(router, ask(b"And?", api=Api.RESPONSES, continues="resp-1"), now_s=3.0).engine == first.engine
    unknown = place(router, ask(b"And?", continues="resp-unknown"), now_s=3.0)
    assert "session_affinity" not in next(iter(unknown.top_candidates())).scores_s


def test_an_adapter_is_used_where_it_was_used() -> None:
    """Its second request goes where it is loaded already, and models that are none are not held there."""
    router = router_of(0)
    for number in range(3):
        add_pod(router, f"http://{number}", adapters=["lora"])
    first = place(router, ask(b"Hi", model="lora"), draw=0.4)
    first.release(0.1)
    assert place(router, ask(texts_apart(1), model="lora"), now_s=10.0).engine == first.engine
    assert place(router, ask(texts_apart(2)), now_s=11.0).engine != first.engine


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_the_other_routings_spread_whatever_is_warm(routing: str) -> None:
    """Round robin takes turns; least loaded goes where least is running."""
    router = router_of(3, scorers=routings()[routing])
    chosen = [place(router, ask(TALK), now_s=1.0).engine.slot for _ in range(9)]
    assert Counter(chosen) == {0: 3, 1: 3, 2: 3}
    if routing == "round-robin":
        assert chosen[:3] == chosen[3:6] == chosen[6:]


def test_without_scorers_all_are_equal() -> None:
    """Nothing to weigh is a tie, not a fault."""
    router = router_of(3, scorers=[])
    assert Counter(place(router, ask()).engine.slot for _ in range(6)) == {0: 2, 1: 2, 2: 2}


class Unconditional:
    """A scorer that runs in every decision, whatever column it needs."""

    def __init__(self, scorer: Scorer) -> None:
        self.name, self._scorer = scorer.name, scorer

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        return self._scorer.score(request, candidates)


@given(
    kv_tokens=st.sampled_from([None, 1_000, 100_000]),
    running=st.integers(0, 3),
    new_since_s=st.sampled_from([-1e6, 90.0, 70.0]),
    role=st.sampled_from([Role.EITHER, Role.DECODE]),
    session=st.sampled_from([None, "a", "b"]),
    model=st.sampled_from([MODEL, "adapter"]),
)
def test_skipping_a_scorer_changes_no_score(
    kv_tokens: int | None, running: int, new_since_s: float, role: Role, session: str | None, model: str
) -> None:
    """With and without the columns that scorers need, all candidates get the same seconds by the same names."""
    shown = []
    scorers = (*routings()["warm"][:-2], DecodeRolePenalty(1.0), PrefillStallCost())
    for members in (scorers, [cast("Scorer", Unconditional(scorer)) for scorer in scorers]):
        router = Router(members)
        for number in range(3):
            url = f"http://{number}"
            add_pod(
                router,
                url,
                adapters=["adapter"],
                kv_tokens=kv_tokens,
                ready_since_s=new_since_s if number == 1 else -1e6,
            )
            router.fleet.override_role(url, role if number else Role.EITHER)
        for number in range(running):
            place(router, ask(texts_apart(number), session="a"), now_s=95.0)
        placement = place(router, ask(TALK, model=model, session=session), now_s=100.0)
        shown.append(list(placement.top_candidates()))
    assert shown[0] == shown[1]


def test_a_scorer_runs_where_its_column_has_a_value() -> None:
    """Without a session its scorer is skipped; with one it counts."""
    router = router_of(2)
    plain, first = place(router, ask(TALK)), place(router, ask(TALK, session="a"))
    again = place(router, ask(TALK, session="a"))
    assert [
        ["session_affinity" in next(iter(one.top_candidates())).scores_s for one in (plain, first, again)],
        [scorer.name for scorer in router.scorers],
    ] == [[False, False, True], [scorer.name for scorer in routings()["warm"]]]


def test_ranks_of_one_pod_are_engines_of_their_own() -> None:
    """Each with its own cache: a conversation returns to its rank."""
    router = router_of(0)
    add_pod(router, "http://a", ranks=[0, 1, 2])
    first = serve(router, ask(TALK), draw=0.99)
    others = [place(router, ask(texts_apart(number)), now_s=2.0).engine.rank for number in range(2)]
    assert sorted([first.engine.rank or 0, *(rank or 0 for rank in others)]) == [0, 1, 2]
    assert place(router, ask(TALK), now_s=2.0).engine == first.engine


# -- charging ------------------------------------------------------------------------------------------------------


def test_what_is_chosen_is_charged_in_the_same_step() -> None:
    """Work, memory and places, as predicted; the next decision sees it."""
    router = router_of(1)
    placement = place(router, ask(sequences=3))
    assert router.ledger.running == [3]
    assert router.ledger.prefill_tokens[0] == pytest.approx(placement.predicted.work_tokens)
    assert router.ledger.kv_tokens[0] > placement.predicted.prompt_tokens
    seen = place(router, ask(texts_apart(1))).predicted
    assert seen.running == 3
    assert seen.work_tokens > placement.predicted.work_tokens


def test_warm_tokens_are_charged_once() -> None:
    """A prompt that is warm needs prefill and memory for its cold end only; its last token is always computed."""
    router = router_of(1)
    first = place(router, ask(TALK))
    first.first_token(1.0)
    first.settle(Usage(2000, 1, 0), 1.0)
    first.release(1.0)
    again = place(router, ask(TALK), now_s=2.0)
    assert 1900 < again.predicted.cached_tokens < 2000
    assert again.predicted.cached_tokens % 16 == 0
    assert router.ledger.prefill_tokens[0] < 200


def test_the_empty_prompt_is_placed_too() -> None:
    """Tokenising reads nothing into a cache, and no number turns negative."""
    router = router_of(2)
    predicted = place(router, ask(b"", api=Api.TOKENIZE)).predicted
    assert (predicted.prompt_tokens, predicted.cached_tokens, predicted.work_tokens) == (0, 0, 0)


def test_load_of_others_counts() -> None:
    """What a scrape saw on an engine speaks against it, as long as it is fresh."""
    router = router_of(2)
    router.observe_load(0, ExternalLoad(running=50, kv_tokens=99_900, at_s=100.0))
    assert {place(router, ask(texts_apart(at)), now_s=101.0).engine.slot for at in range(2)} == {1}
    assert {place(router, ask(texts_apart(at)), now_s=300.0 + at).engine.slot for at in range(5)} == {0, 1}


# -- coming and going ----------------------------------------------------------------------------------------------


def test_a_gone_pod_is_not_chosen_and_its_requests_still_end() -> None:
    """What runs there is settled as it ends; the slot waits for the last of it."""
    router = router_of(2)
    staying = [place(router, ask(texts_apart(number))) for number in range(4)]
    router.remove_pod("http://0")
    assert {place(router, ask(texts_apart(9))).engine.pod for _ in range(3)} == {"http://1"}
    add_pod(router, "http://2")
    assert router.fleet.eligible(MODEL).slots == (1, 2)
    for placement in staying:
        placement.first_token(1.0)
        placement.settle(Usage(100, 10, 50), 2.0, answer=b"text", response_id="resp")
        placement.release(2.0)
    add_pod(router, "http://3")
    assert sorted(router.fleet.eligible(MODEL).slots) == [0, 1, 2]


def test_a_new_engine_inherits_nothing_of_its_slot() -> None:
    """Not warmth, load of others, sessions, stored responses, adapters nor speed, even where answers came late."""
    router = router_of(0)
    for number in range(2):
        add_pod(router, f"http://{number}", adapters=["lora"])
    slow = place(router, ask(TALK, model="lora", session="s"), avoid="http://1")
    late = place(router, ask(TALK, model="lora", session="s", api=Api.RESPONSES), avoid="http://1")
    slow.first_token(500.0)
    router.observe_load(0, ExternalLoad(running=99, at_s=500.0))
    slow.release(501.0)
    router.remove_pod("http://0")
    late.first_token(900.0)
    late.settle(Usage(1000, 5, 0), 901.0, answer=b"x" * 5000, response_id="resp")
    late.release(901.0)
    add_pod(router, "http://2", adapters=["lora"])
    new = next(engine for engine in router.fleet.eligible("lora").engines if engine.pod == "http://2")
    assert new.slot == 0
    assert router.ledger.all_running[0] == 0
    assert router.index.size_of(0) == 0
    assert router.sessions.get("s") is router.responses.get("resp") is None
    assert router.adapters.get(("lora", 0)) is None
    add_pod(router, "http://3")
    costs = router.costs
    for column in (costs.prefill_overhead_s, costs.seconds_per_token, costs.step_base_s, costs.residence_s):
        assert column[0] == pytest.approx(column[2])


def test_ranks_that_disappear_are_retired() -> None:
    """A pod restarted with fewer ranks keeps the others' slots and warmth."""
    router = router_of(0)
    add_pod(router, "http://a", ranks=[0, 1])
    kept = place(router, ask(TALK), draw=0.0)
    kept.first_token(1.0)
    gone = place(router, ask(texts_apart(1)))
    assert (kept.engine.rank, gone.engine.rank) == (0, 1)
    router.reshape_pod("http://a", [EngineShape(0, kv_tokens=100_000, block_tokens=16)])
    assert place(router, ask(TALK), now_s=2.0).predicted.cached_tokens > 0
    assert place(router, ask(texts_apart(1)), now_s=2.0).predicted.cached_tokens == 0
    gone.release(3.0)
    router.reshape_pod("http://a", [EngineShape(0), EngineShape(1)])
    assert router.fleet.eligible(MODEL).slots == (0, 1)


def test_a_restarted_pod_is_cold() -> None:
    """Told to forget, nothing of it is warm; it is filled anew."""
    router = router_of(1)
    place(router, ask(TALK)).first_token(1.0)
    router.clear_caches("http://0")
    again = place(router, ask(TALK), now_s=2.0)
    assert again.predicted.cached_tokens == 0
    again.first_token(3.0)
    assert place(router, ask(TALK), now_s=4.0).predicted.cached_tokens > 0
    router.clear_caches("http://unknown")


@pytest.mark.parametrize(("kv_tokens", "is_warm"), [(None, True), (100_000, True), (64, False)])
def test_no_one_is_warm_for_more_than_it_can_hold(kv_tokens: int | None, is_warm: bool) -> None:
    """An engine is believed to hold what it says it can; one that says nothing is taken for a small one."""
    router = router_of(1, kv_tokens=kv_tokens)
    for at in range(3):
        placement = place(router, ask(texts_apart(at)), now_s=at)
        placement.first_token(at + 0.5)
        placement.release(at + 0.6)
    predicted = place(router, ask(texts_apart(2)), now_s=9.0).predicted
    assert (predicted.cached_tokens > 500) == is_warm


def test_caches_are_resized_as_the_ratio_is_learned() -> None:
    """An engine that holds a thousand tokens holds twice the bytes when tokens turn out twice as long."""
    router = Router(routings()["warm"])
    add_pod(router, "http://a")
    engine = router.fleet.eligible(MODEL).engines[0]
    before = router.index._engines[engine.slot].nominal_capacity
    for size in range(4000, 40_000, 400):
        router.counters[MODEL].learn(cut_prompt(b"x" * size, size), size // 8)
    router.resize_caches("http://a")
    assert router.index._engines[engine.slot].nominal_capacity == pytest.approx(2 * before, rel=0.1)
