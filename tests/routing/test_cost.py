"""A weighted mean of what was seen by what was expected, which begins with doubt and forgets."""

import random
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.cost import (
    CONTEXT_SCALE_TOKENS,
    MAX_STEP,
    MEAN_MEMORY,
    MIN_SCALE_TOKENS,
    MIN_TOKENS,
    OUTLIER,
    PRIOR_SPREAD,
    ContextGrowth,
    CostModel,
    CostPrior,
    RunningRatio,
    WorkloadAverages,
    prefill_work,
)


def test_it_begins_unreliable_and_ends_with_what_is_observed() -> None:
    """The first observations move it a little, many of them all the way."""
    ratio = RunningRatio(memory=40.0, total_weight=8.0)
    ratio.observe(2.0)
    assert 1.0 < ratio.value < 1.2
    for _ in range(400):
        ratio.observe(2.0)
    assert ratio.value == pytest.approx(2.0, rel=0.01)


def test_much_counts_for_much() -> None:
    """Observations of little weight do not move what one of much weight says."""
    ratio = RunningRatio(memory=1000.0, total_weight=1.0)
    for _ in range(10):
        ratio.observe(3.0, 0.01)
        ratio.observe(1.0, 1.0)
    assert ratio.value < 1.05


def test_it_forgets() -> None:
    """What was true for long gives way to what is true now."""
    ratio = RunningRatio(memory=40.0)
    for _ in range(1000):
        ratio.observe(1.0)
    for _ in range(200):
        ratio.observe(0.5)
    assert ratio.value == pytest.approx(0.5, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1, 1e6)), max_size=50))
def test_one_observation_moves_it_within_bounds(seen: list[tuple[float, float]]) -> None:
    """However far off and heavy an observation is, the mean goes a quarter of the way to four times itself at most."""
    ratio = RunningRatio(memory=50.0)
    for seen_ratio, weight in seen:
        before = ratio.value
        ratio.observe(seen_ratio, weight)
        assert before * (1 - MAX_STEP) * 0.999 <= ratio.value <= before * (1 + MAX_STEP * OUTLIER)


def test_it_leans_on_another_while_little_is_observed() -> None:
    """Nothing seen: all the other's. Much seen: nearly all its own."""
    other, ratio = RunningRatio(memory=40.0, value=5.0), RunningRatio(memory=40.0)
    assert ratio.shrunk_towards(other, 8.0) == 5.0
    for _ in range(8):
        ratio.observe(1.0)
    assert ratio.shrunk_towards(other, 8.0) == pytest.approx(3.0)
    for _ in range(2000):
        ratio.observe(1.0)
    assert ratio.shrunk_towards(other, 8.0) == pytest.approx(1.0, rel=0.05)


def taught(
    scale_tokens: float, *, max_chars: float, count: int = 200, wait_s: float = 0.0, pace_s: float = 1e-4
) -> ContextGrowth:
    """Prompts of all lengths, some of them mostly warm, on an engine whose L0 is `scale_tokens`."""
    draw, growth = random.Random(1), ContextGrowth()
    for _ in range(count):
        cold = draw.uniform(500, max_chars)
        context = cold + draw.choice((0, 0, 20_000, 60_000))
        seconds = pace_s * cold * (1 + (context - cold / 2) / scale_tokens)
        growth.observe(cold, context, 0.01 + seconds + draw.uniform(0, wait_s))
    return growth


@pytest.mark.parametrize("pace_s", [1e-5, 1e-3])
@pytest.mark.parametrize("scale_tokens", [20_000.0, 100_000.0, 300_000.0])
def test_the_true_growth_is_found(scale_tokens: float, pace_s: float) -> None:
    """Whatever the engines' speed."""
    growth = taught(scale_tokens, max_chars=100_000, pace_s=pace_s)
    assert 1 / growth.per_token == pytest.approx(scale_tokens, rel=0.25)


def test_prefill_that_does_not_grow_is_detected_soon() -> None:
    """Five long prompts are enough to halve what was believed of growth, two hundred to forget it."""
    assert taught(1e15, max_chars=150_000, count=5).per_token < 0.5 / CONTEXT_SCALE_TOKENS
    assert taught(1e15, max_chars=150_000).per_token < 0.05 / CONTEXT_SCALE_TOKENS


def test_what_all_wait_alike_does_not_look_like_growth() -> None:
    """A step in flight before everybody makes growth look smaller, never larger."""
    waited, alone = taught(50_000, max_chars=60_000, wait_s=0.5), taught(50_000, max_chars=60_000)
    assert 1 / waited.per_token == pytest.approx(50_000, rel=0.3)
    assert waited.per_token <= alone.per_token * 1.05


def test_short_prompts_report_nothing_of_it() -> None:
    """What they take is the step's time, not their own."""
    growth = ContextGrowth()
    for _ in range(100):
        growth.observe(MIN_TOKENS - 1, 100_000, 30.0)
    assert growth.per_token == 1 / CONTEXT_SCALE_TOKENS


def test_one_pause_changes_little() -> None:
    """An engine that stood still for a minute once has not learned to grow."""
    growth = taught(100_000, max_chars=60_000)
    growth.observe(50_000, 50_000, 600.0)
    assert 1 / growth.per_token == pytest.approx(100_000, rel=0.5)


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e5)), max_size=50))
def test_it_stays_within_its_bounds(seen: list[tuple[float, float, float]]) -> None:
    """Whatever is seen."""
    growth = ContextGrowth()
    for cold, more, seconds in seen:
        growth.observe(cold, cold + more, seconds)
        assert 0 <= growth.per_token <= 1 / MIN_SCALE_TOKENS


def test_nothing_is_known_at_first() -> None:
    """Nor from prompts that are all warm."""
    usual = WorkloadAverages(step_s=0.01)
    usual.observe_prefill(0.0)
    assert usual.prefill_s == usual.stream_s == 0.0


def test_the_first_count_in_full() -> None:
    """Prefill in seconds, answers by their tokens in steps of an undisturbed engine."""
    usual = WorkloadAverages(step_s=0.01)
    for own_s, tokens in ((0.2, 10), (0.4, 30)):
        usual.observe_prefill(own_s)
        usual.observe_output(tokens)
    assert usual.prefill_s == pytest.approx(0.3)
    assert usual.stream_s == pytest.approx(0.2)


def test_the_typical_answer_is_not_that_of_the_few_long_ones() -> None:
    """A geometric mean; 0 before any was seen."""
    usual = WorkloadAverages(step_s=0.01)
    assert usual.typical_answer_tokens == 0.0
    for tokens in (10, 1000):
        usual.observe_output(tokens)
    assert usual.typical_answer_tokens == pytest.approx(100.0)
    assert usual.median_stream_s == pytest.approx(1.0)


def test_how_much_answers_differ_is_learned() -> None:
    """The deviation of the logarithms, from a prior that the first few answers do not undo."""
    usual = WorkloadAverages(step_s=0.01)
    assert usual.answer_spread == PRIOR_SPREAD
    usual.observe_output(300)
    assert 0.9 * PRIOR_SPREAD < usual.answer_spread < PRIOR_SPREAD
    for _ in range(200):
        usual.observe_output(30)
        usual.observe_output(3_000)
    assert usual.answer_spread == pytest.approx(log(10.0), rel=0.1)
    for _ in range(1_000):
        usual.observe_output(200)
    assert usual.answer_spread < 0.5 * PRIOR_SPREAD


def test_an_answer_of_one_token_is_a_stream_of_one_step() -> None:
    """So that nothing is ever divided by nothing."""
    usual = WorkloadAverages(step_s=0.01)
    usual.observe_output(0)
    assert usual.stream_s == pytest.approx(0.01)


def test_what_was_is_forgotten() -> None:
    """After some memories nothing is left of it."""
    usual = WorkloadAverages(step_s=0.01)
    for own_s in [9.0] * 10 + [1.0] * int(8 * MEAN_MEMORY):
        usual.observe_prefill(own_s)
    assert usual.prefill_s == pytest.approx(1.0, rel=0.01)


def paced(book: CostModel, slot: int, tokens: float) -> float:
    """Predicted seconds of prefill."""
    return book.prefill_overhead_s[slot] + tokens * book.seconds_per_token[slot]


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1e6), st.floats(0, 1e4)), max_size=60))
def test_predictions_stay_sane(seen: list[tuple[int, float, float]]) -> None:
    """Whatever is seen, more work never takes less time, and nothing is infinite."""
    book = CostModel()
    book.resize(3)
    for slot, tokens, seconds in seen:
        book.observe_first_token(slot, tokens, seconds)
        for each in range(3):
            assert 0 <= paced(book, each, 0) <= paced(book, each, 1000) < float("inf")


@pytest.mark.parametrize("seconds_per_token", [1 / 50_000, 1 / 8_000, 1 / 500])
def test_a_true_pace_is_found_in_noise(seconds_per_token: float) -> None:
    """After a thousand noisy times of engines far from the prior, what is predicted is nearly the truth."""
    rng = random.Random(1)
    book = CostModel()
    book.resize(4)
    for _ in range(1000):
        tokens = rng.choice([100, 500, 2_000, 8_000, 16_000])
        book.observe_first_token(rng.randrange(4), tokens, (0.02 + tokens * seconds_per_token) * rng.uniform(0.9, 1.1))
    for slot in range(4):
        for tokens in (4_000, 16_000):
            assert paced(book, slot, tokens) == pytest.approx(0.02 + tokens * seconds_per_token, rel=0.15)


def test_before_anything_is_observed_the_prior_counts() -> None:
    """The first request is predicted sanely, and one odd time does not overturn that."""
    book = CostModel()
    book.resize(1)
    assert paced(book, 0, 12_000) == pytest.approx(1.015)
    book.observe_first_token(0, 1_000, 5.0)
    assert paced(book, 0, 12_000) < 5.0


@given(st.floats(0, 30_000), st.floats(OUTLIER, 1e6))
def test_an_outlier_is_bounded(tokens: float, times_as_long: float) -> None:
    """An engine that stood still once is not taken for slow: one time counts four times what was expected at most."""
    steady, disturbed = CostModel(), CostModel()
    for book in (steady, disturbed):
        book.resize(1)
        for _ in range(50):
            for each in (2_000, 10_000):
                book.observe_first_token(0, each, paced(book, 0, each))
    expected = paced(steady, 0, tokens)
    disturbed.observe_first_token(0, tokens, expected * times_as_long)
    steady.observe_first_token(0, tokens, expected * OUTLIER)
    assert paced(disturbed, 0, 8_000) == pytest.approx(paced(steady, 0, 8_000), rel=0.03)


def test_waits_of_small_requests_do_not_make_work_look_free() -> None:
    """Small requests that wait for the step in flight say nothing against the price of a long prompt."""
    book = CostModel()
    book.resize(1)
    for _ in range(300):
        for tokens, seconds in ((300, 0.7), (10_000, 10_000 / 12_000), (30_000, 30_000 / 12_000)):
            book.observe_first_token(0, tokens, seconds)
    assert paced(book, 0, 20_000) == pytest.approx(20_000 / 12_000, rel=0.25)


def test_a_very_first_step_that_compiles_is_no_measure() -> None:
    """An engine's first request may take a minute: it is not priced by that, or it would never get another one."""
    book = CostModel()
    book.resize(1)
    before = book.prefill_overhead_s[0] + 2_000 * book.seconds_per_token[0]
    book.observe_first_token(0, 2_000, 60.0)
    assert book.prefill_overhead_s[0] + 2_000 * book.seconds_per_token[0] < OUTLIER * before


def test_a_machine_a_hundred_times_slower_is_believed_in_time() -> None:
    """The bound on single points does not keep a slow fleet from being seen as it is."""
    book = CostModel()
    book.resize(1)
    for _ in range(30):
        book.observe_first_token(0, 2_000, 20.0)
    assert book.prefill_overhead_s[0] + 2_000 * book.seconds_per_token[0] == pytest.approx(20.0, rel=0.2)


def test_an_engine_that_becomes_slower_is_noticed() -> None:
    """Old times fade: what an engine shows now outweighs what it and its siblings showed before."""
    book = CostModel()
    book.resize(2)
    for slot, seconds_per_token in ((0, 1 / 20_000), (1, 1 / 20_000), (1, 1 / 5_000)):
        for _ in range(100):
            for tokens in (500, 4_000, 12_000):
                book.observe_first_token(slot, tokens, 0.01 + tokens * seconds_per_token)
    predicted = [book.prefill_overhead_s[slot] + 8_000 * book.seconds_per_token[slot] for slot in (0, 1)]
    assert predicted == [pytest.approx(0.41, rel=0.05), pytest.approx(1.61, rel=0.15)]


def test_engines_that_are_alike_stay_alike_while_little_is_observed() -> None:
    """Three answers of one of two equal engines, both far from the prior, do not make the other look much cheaper."""
    book = CostModel()
    book.resize(2)
    for tokens in (20, 154, 582):
        book.observe_first_token(0, tokens, 0.05 + tokens / 600)
    warm, cold = (
        book.prefill_overhead_s[slot] + left * book.seconds_per_token[slot] for slot, left in ((0, 57), (1, 345))
    )
    assert warm < cold
    assert book.seconds_per_token[0] / book.seconds_per_token[1] < 1.5


def test_leaning_on_the_fleet_spares_an_engine_a_wrong_first_slope() -> None:
    """An engine that has seen short prompts only prices long ones as the fleet does, not as its first prior did."""
    book = CostModel()
    book.resize(2)
    for _ in range(100):
        for tokens in (500, 8_000, 16_000):
            book.observe_first_token(0, tokens, 0.01 + tokens / 48_000)
        book.observe_first_token(1, 100, 0.01 + 100 / 48_000)
    assert book.seconds_per_token[1] == pytest.approx(1 / 48_000, rel=0.5)


def test_a_new_engine_starts_from_what_its_siblings_showed() -> None:
    """After learning on one engine a forgotten slot, and a new one, begin there; how long sequences stay, anew."""
    book = CostModel()
    book.resize(2)
    for _ in range(200):
        for tokens in (500, 8_000, 16_000):
            book.observe_first_token(0, tokens, 0.01 + tokens / 48_000)
            book.observe_decode(0, 10, 100, 100 * 0.03)
    book.forget(1)
    book.resize(3)
    for slot in (1, 2):
        assert book.seconds_per_token[slot] == pytest.approx(1 / 48_000, rel=0.1)
        assert book.step_base_s[slot] + 10 * book.step_per_sequence_s[slot] == pytest.approx(0.03, rel=0.1)
        assert book.residence_s[slot] == CostPrior().residence_s
    assert book.residence_s[0] == pytest.approx(3.0, rel=0.01)


def test_columns_have_one_entry_per_slot() -> None:
    """Room is made once, and asking for less takes nothing away."""
    book = CostModel(
        CostPrior(prefill_overhead_s=0.5, seconds_per_token=0.25, step_base_s=0.125, step_per_sequence_s=0.5)
    )
    book.resize(3)
    book.resize(2)
    assert book.prefill_overhead_s == [0.5] * 3
    assert book.seconds_per_token == [0.25] * 3
    assert book.step_base_s == [0.125] * 3
    assert book.step_per_sequence_s == [0.5] * 3
    assert book.residence_s == [5.0] * 3


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_single_token_says_nothing_of_steps(tokens: int) -> None:
    """There is no step between one token and none; how long it stayed is learned all the same."""
    book = CostModel()
    book.resize(1)
    before = book.step_base_s[0], book.step_per_sequence_s[0]
    book.observe_decode(0, 4, tokens, 1.0)
    assert (book.step_base_s[0], book.step_per_sequence_s[0]) == before
    assert book.residence_s[0] < 5.0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_prefill_work_grows_with_what_is_cold_and_what_is_before(cold: float, warm: float, more: float) -> None:
    """More cold tokens are more work; the same ones behind a longer context too; a warm prompt is no work."""
    context = warm + cold
    assert prefill_work(cold, context) >= cold
    assert prefill_work(cold, context + more) >= prefill_work(cold, context)
    assert prefill_work(cold + more, context + more) >= prefill_work(cold, context)
    assert prefill_work(0, context) == 0


def test_work_in_parts_is_work_in_one() -> None:
    """Two prefills one after the other cost what one of the whole does: context counts once, at the prompt's middle."""
    complete = prefill_work(50_000, 50_000)
    parts = prefill_work(20_000, 20_000) + prefill_work(30_000, 50_000)
    assert parts == pytest.approx(complete)
    assert prefill_work(CONTEXT_SCALE_TOKENS, CONTEXT_SCALE_TOKENS) == pytest.approx(1.5 * CONTEXT_SCALE_TOKENS)
