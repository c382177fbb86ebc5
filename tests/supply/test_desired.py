"""The decision: what is answered, what is held, and that all gateways answer alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.facts import Role
from supply.desired import EMPTY_STATE, SupplyReason, decode_state, desired_engines, encode_state, explain
from supply.load import EngineSpeed, ModelLoad, OfferedWork, PoolLoad, TierLoad
from supply.policy import ControlMode, GuardRails, SupplyPolicy
from tests.supply.builders import BATCH, GOLD, MONDAY_S, SILVER, decide, load_of, rails, work


def test_engines_follow_the_load_up_at_once_and_down_after_a_while() -> None:
    """Three times the load and back: up with the next answers, down once the higher figure has left the window."""
    answers, state, ready = [], EMPTY_STATE, 4
    for at, requests in enumerate([10.0] * 8 + [30.0] * 16 + [10.0] * 60):
        load = load_of(requests, PoolLoad(ready=ready))
        answer, state = desired_engines(load, SupplyPolicy(), state, MONDAY_S + 15 * at)
        answers.append(answer)
        ready = answer.pools[0].engines
    engines = [answer.pools[0].engines for answer in answers]
    low, high = engines[7], max(engines)
    assert high > 2 * low
    assert engines.index(high) < 8 + 16
    assert engines[28] >= engines[23] > 2 * low
    assert engines[-1] <= low + 1
    assert answers[28].pools[0].reason is SupplyReason.MIN_STAY


def test_all_gateways_answer_alike_through_a_shared_state() -> None:
    """One keeps its state as a value, the other reads it as JSON before each decision."""
    loads = [load_of(5 + at % 7, PoolLoad(ready=3), PoolLoad("cloud", rank=1)) for at in range(30)]
    state = other = EMPTY_STATE
    for at, load in enumerate(loads):
        first, state = desired_engines(load, SupplyPolicy(), state, MONDAY_S + 15 * at)
        second, other = desired_engines(load, SupplyPolicy(), decode_state(encode_state(other)), MONDAY_S + 15 * at)
        assert first == second
    assert decode_state(encode_state(state)) == state


@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.integers(0, 20), st.booleans(), st.booleans(), st.floats(-4e3, 4e3)),
        min_size=2,
        max_size=12,
    )
)
@settings(max_examples=60)
def test_stale_and_partial_figures_never_lower_a_count(rows: list[tuple[float, int, bool, bool, float]]) -> None:
    """Whatever came before, however the clock jumps; and rails hold for each answer."""
    policy, state, now_s, last = rails(1, 12, 3), EMPTY_STATE, MONDAY_S, None
    for requests, ready, is_stale, is_partial, jump_s in rows:
        load = load_of(
            requests,
            PoolLoad(ready=min(ready, 12)),
            age_s=1e3 if is_stale else 0.0,
            completeness=0.5 if is_partial else 1.0,
        )
        now_s += jump_s
        answer, state = desired_engines(load, policy, state, now_s)
        (pool,) = answer.pools
        assert 1 <= pool.engines <= 12
        assert answer.is_known == (not (is_stale or is_partial))
        if last is not None:
            assert abs(pool.engines - last) <= 3
            if is_stale or is_partial:
                assert pool.engines >= last
        last = pool.engines


def test_next_to_no_requests_are_decided_like_none() -> None:
    """The spread of their number is no number that a search could not end with."""
    policy, state = rails(0, 12, 3), EMPTY_STATE
    for at, requests in enumerate((5e-324, 1e-9, 5e-324, 1e-200, 3.0)):
        answer, state = desired_engines(load_of(requests, PoolLoad(ready=3)), policy, state, MONDAY_S + 4_000 * at)
        assert 0 <= answer.pools[0].engines <= 12


def test_a_jump_of_the_clock_lowers_nothing_at_once() -> None:
    """Three hours ahead with a tenth of the load: the count is held for the time of the window again."""
    pool = PoolLoad(ready=6)
    _, state = decide([load_of(40, pool)] * 30)
    answers, _ = decide([load_of(4, pool)] * 20, state=state, begin_s=MONDAY_S + 3 * 3_600)
    engines = [answer.pools[0].engines for answer in answers]
    assert engines[0] == engines[10]
    assert engines[19] < engines[0]


def test_a_cluster_that_grants_nothing_is_named_and_the_figure_stops_rising() -> None:
    """Four start-up times without an engine more: the next pool takes the rest, and short tiers are listed."""
    home, cloud = PoolLoad("home", ready=3, start_s=60), PoolLoad("cloud", rank=1, price_per_hour=5.0)
    answers, state = decide([load_of(10, home, cloud)] * 4 + [load_of(30, home, cloud)] * 40)
    raised = max(answer.pools[0].engines for answer in answers)
    last = answers[-1]
    assert last.pools[0].reason is SupplyReason.NOT_GRANTED
    assert last.pools[0].engines <= raised
    assert last.pools[1].engines > 0
    answers, _ = decide([load_of(60, home)] * 40, state=state, begin_s=MONDAY_S + 44 * 15)
    assert answers[-1].pools[0].engines == last.pools[0].engines
    assert answers[-1].short == ("gold",)
    granted = replace(home, ready=last.pools[0].engines)
    answers, _ = decide([load_of(60, granted)] * 3, state=state, begin_s=MONDAY_S + 44 * 15)
    assert answers[-1].pools[0].engines > last.pools[0].engines


def test_an_engine_that_never_serves_does_not_count() -> None:
    """Stuck in its start for long: the cloud takes its part."""
    stuck = PoolLoad("home", ready=1, starting=3, start_s=60, oldest_start_s=900)
    answers, _ = decide([load_of(20, stuck, PoolLoad("cloud", rank=1))] * 2)
    home, cloud = answers[-1].pools
    assert home.reason is SupplyReason.NOT_GRANTED
    assert cloud.engines > 0


def test_a_held_request_asks_for_an_engine_and_quiet_pools_go_to_zero() -> None:
    """One from zero at the first decision; zero after the quiet time, unless a stream is left."""
    empty = replace(load_of(0, PoolLoad()), held=1)
    answers, _ = decide([empty], rails())
    assert answers[0].pools[0].engines == 1
    assert answers[0].pools[0].reason is SupplyReason.FROM_ZERO
    assert answers[0].pools[0].is_active
    quiet = [load_of(0, PoolLoad(ready=1))] * 90
    answers, _ = decide([load_of(1, PoolLoad(ready=1)), *quiet], rails())
    assert answers[50].pools[0].engines == 1
    assert answers[-1].pools[0].engines == 0
    assert answers[-1].pools[0].reason is SupplyReason.IDLE
    streaming = [load_of(0, PoolLoad(ready=1, busy=1.0))] * 90
    answers, _ = decide([load_of(1, PoolLoad(ready=1)), *streaming], rails())
    assert answers[-1].pools[0].engines == 1


def test_best_effort_work_gets_one_engine_and_no_more() -> None:
    """A batch wakes a model, and then uses what others leave idle."""
    answers, _ = decide([load_of(100, PoolLoad(), objective=BATCH)] * 3)
    assert answers[-1].pools[0].engines == 1


def test_residency_keeps_a_tier_in_its_pools() -> None:
    """Gold may not leave home; silver goes where it is cheaper."""
    tiers = (TierLoad(GOLD, work(10), pools=frozenset(("home",))), TierLoad(SILVER, work(10)))
    pools = (PoolLoad("home", price_per_hour=9.0), PoolLoad("cloud", price_per_hour=1.0))
    answers, _ = decide([ModelLoad("m", tiers, pools)])
    home, cloud = answers[0].pools
    alone, _ = decide([ModelLoad("m", tiers[:1], pools[:1])])
    assert home.engines == alone[0].pools[0].engines
    assert cloud.engines > 0
    nowhere = (TierLoad(GOLD, work(10), pools=frozenset(("other",))),)
    answers, _ = decide([ModelLoad("m", nowhere, pools)])
    assert answers[0].short == ("gold",)


def test_prefill_and_decode_pools_scale_apart() -> None:
    """Longer prompts add prefill engines only; longer answers add decode engines only."""
    pools = (PoolLoad("p", Role.PREFILL, ready=2), PoolLoad("d", Role.DECODE, ready=2))

    def engines(prefill: float, output: float) -> list[int]:
        load = ModelLoad("m", (TierLoad(GOLD, work(20, prefill, output)),), pools)
        return [pool.engines for pool in decide([load])[0][0].pools]

    base, prompts, answers = engines(4_000, 600), engines(12_000, 600), engines(4_000, 2_400)
    assert prompts[0] > base[0]
    assert prompts[1] == base[1]
    assert answers[0] == base[0]
    assert answers[1] > base[1]


def test_pools_of_either_role_beside_a_split_fleet_keep_their_engines() -> None:
    """They carry a part, and the split pools the rest."""
    split = (PoolLoad("p", Role.PREFILL), PoolLoad("d", Role.DECODE))
    tiers = (TierLoad(GOLD, work(40)),)
    alone = decide([ModelLoad("m", tiers, split)])[0][0]
    beside = decide([ModelLoad("m", tiers, (*split, PoolLoad("e", ready=4)))])[0][0]
    assert beside.pools[2].engines == 4
    assert beside.pools[0].engines < alone.pools[0].engines


def test_queued_work_raises_the_figure() -> None:
    """A backlog is caught up within a start-up time."""
    tier = TierLoad(GOLD, work(10), queued=OfferedWork(300, 1_200_000, 75_000))
    answers, _ = decide([ModelLoad("m", (tier,), (PoolLoad(ready=5),))])
    plain, _ = decide([load_of(10, PoolLoad(ready=5))])
    assert answers[0].pools[0].engines > plain[0].pools[0].engines
    assert answers[0].pools[0].reason is SupplyReason.BACKLOG


def test_tiers_sum_up_to_the_figure_and_the_explanation_names_them() -> None:
    """Spare engines are the tier without a name."""
    tiers = (TierLoad(GOLD, work(10)), TierLoad(SILVER, work(10)))
    answers, _ = decide([ModelLoad("m", tiers, (PoolLoad(ready=20, price_per_hour=2.0),))])
    (pool,) = answers[0].pools
    assert sum(pool.tiers.values()) == pytest.approx(pool.engines)
    assert set(pool.tiers) == {"gold", "silver", ""}
    assert pool.price_per_hour == 2.0 * pool.engines
    text = "\n".join(explain(answers[0]))
    for part in ("m default either: 20 engines", "gold: ", "spare: ", "needed_alone", "horizon_s: 90 s"):
        assert part in text


def test_off_computes_nothing() -> None:
    """The state stays as it was."""
    policy = SupplyPolicy(scaling=ControlMode.OFF)
    answers, state = decide([load_of(100, PoolLoad(ready=2))], policy)
    assert answers[0].pools[0].engines == 2
    assert answers[0].pools[0].reason is SupplyReason.OFF
    assert state == EMPTY_STATE


def test_the_cheaper_kind_is_chosen_by_its_learned_speed() -> None:
    """Twice the speed at 1.5 times the price."""
    fast = PoolLoad("fast", speed=replace(EngineSpeed(), prefill_tokens_per_s=24_000), price_per_hour=1.5)
    slow = PoolLoad("slow", price_per_hour=1.0)
    tier = TierLoad(GOLD, work(40, 4_000, 50))
    answers, _ = decide([ModelLoad("m", (tier,), (slow, fast))])
    assert [pool.engines > 1 for pool in answers[0].pools] == [False, True]


def test_a_pool_of_maximum_zero_is_left_out() -> None:
    """It is drained by its rails, and no work is planned for it."""
    policy = SupplyPolicy(pools={"old": GuardRails(0, 0, 9, 0), "default": GuardRails(0, 50, 50, 1e6)})
    answers, _ = decide([load_of(20, PoolLoad("old"), PoolLoad("new"))], policy)
    assert [pool.engines > 0 for pool in answers[0].pools] == [False, True]


def test_only_an_allowed_pool_is_woken() -> None:
    """A batch that may not leave home starts an engine there, though the cloud is cheaper; the cloud stays inactive."""
    tier = TierLoad(BATCH, work(2), pools=frozenset(("home",)))
    pools = (PoolLoad("cloud", price_per_hour=0.1), PoolLoad("home"))
    answers, _ = decide([ModelLoad("m", (tier,), pools, held=2)], rails())
    cloud, home = answers[0].pools
    assert (cloud.engines, cloud.is_active) == (0, False)
    assert (home.engines, home.is_active) == (1, True)


HOME_AND_CLOUD = SupplyPolicy(pools={"home": GuardRails(2, 2, 10, 1e6), "cloud": GuardRails(0, 6, 10, 1e6)})


def beside_a_cloud(requests: float, *, engines: int = 0, busy: float = 0.0) -> ModelLoad:
    return load_of(requests, PoolLoad("home", ready=2), PoolLoad("cloud", rank=1, ready=engines, busy=busy))


def test_no_engine_of_a_cloud_starts_for_the_noise_of_few_requests() -> None:
    """A little more than home carries: one minute does not show it, several do. Much more is shown at once."""
    answers, _ = decide([beside_a_cloud(3.7)] * 40, HOME_AND_CLOUD)
    assert next(term.value for term in answers[0].pools[0].terms if term.name == "needed_alone") > 2
    figures = [answer.pools[1].engines for answer in answers]
    assert (figures[0], figures[-1]) == (0, 1)
    answers, _ = decide([beside_a_cloud(8.0)], HOME_AND_CLOUD)
    assert answers[0].pools[1].engines == 2


def test_an_engine_of_a_cloud_stays_while_it_may_be_needed() -> None:
    """A load for which none would be started keeps the one that is there, and a lower one does not."""
    first = beside_a_cloud(8.0)
    for requests, kept in ((3.6, 1), (2.0, 0)):
        answers, _ = decide([first] + [beside_a_cloud(requests, engines=2)] * 80, HOME_AND_CLOUD)
        assert answers[-1].pools[1].engines == kept


def test_streams_in_a_cloud_hold_no_engine_there_while_home_serves() -> None:
    """A drained engine finishes them. Without another engine they keep the pool from zero."""
    loads = [beside_a_cloud(1.0, engines=1, busy=1.0)] * 40
    answers, _ = decide(loads, HOME_AND_CLOUD)
    assert answers[-1].pools[1].engines == 0
    answers, _ = decide([load_of(0.0, PoolLoad("cloud", rank=1, ready=1, busy=1.0))] * 80, rails())
    assert answers[-1].pools[0].engines == 1
