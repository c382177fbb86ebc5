"""Lines learned from what is seen, and what they make of an engine's times."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.cost import CONTEXT_SCALE_TOKENS, OUTLIER, CostBook, Line, Prior, prefill_work

observations = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4)), max_size=60)


def line() -> Line:
    return Line(0.015, 1 / 12_000, reach=16_384.0)


@given(observations)
def test_a_line_stays_positive_and_finite(seen: list[tuple[float, float]]) -> None:
    """Whatever is seen, more work never takes less time, and nothing takes no time."""
    learned = line()
    for x, y in seen:
        learned.observe(x, y)
        assert 0 < learned.intercept < float("inf")
        assert 0 < learned.slope < float("inf")
        assert learned.at(1000) > learned.at(0) > 0


@pytest.mark.parametrize("overhead_s", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("seconds_per_token", [1 / 50_000, 1 / 8_000, 1 / 500])
def test_a_true_line_is_found_in_noise(overhead_s: float, seconds_per_token: float) -> None:
    """After a thousand noisy times of engines far from the prior, what is predicted is nearly the truth."""
    rng = random.Random(1)
    book = CostBook()
    book.reach(4)
    for _ in range(1000):
        tokens = rng.choice([100, 500, 2_000, 8_000, 16_000])
        seconds = (overhead_s + tokens * seconds_per_token) * rng.uniform(0.9, 1.1)
        book.observe_first_token(rng.randrange(4), tokens, seconds)
    for slot in range(4):
        for tokens in (4_000, 16_000):
            predicted = book.prefill_overhead_s[slot] + tokens * book.seconds_per_token[slot]
            assert predicted == pytest.approx(overhead_s + tokens * seconds_per_token, rel=0.1)


def test_before_anything_is_seen_the_prior_counts() -> None:
    """The first request is predicted sanely, and one odd time does not overturn that."""
    learned = line()
    assert learned.at(12_000) == pytest.approx(1.015)
    learned.observe(1_000, 5.0)
    assert learned.at(12_000) < 5.0


@given(st.floats(0, 30_000), st.floats(OUTLIER, 1e6))
def test_an_outlier_is_bounded(tokens: float, times_as_long: float) -> None:
    """An engine that stood still once is not taken for slow: one point counts at four times the line at most."""
    steady, disturbed = line(), line()
    for _ in range(50):
        for each in (2_000, 10_000):
            steady.observe(each, 0.015 + each / 12_000)
            disturbed.observe(each, 0.015 + each / 12_000)
    disturbed.observe(tokens, steady.at(tokens) * times_as_long)
    steady.observe(tokens, steady.at(tokens) * OUTLIER)
    assert disturbed.at(8_000) == pytest.approx(steady.at(8_000))


def test_a_very_first_step_that_compiles_is_no_measure() -> None:
    """An engine's first request may take a minute: it is not priced by that, or it would never get another one."""
    book = CostBook()
    book.reach(1)
    before = book.prefill_overhead_s[0] + 2_000 * book.seconds_per_token[0]
    book.observe_first_token(0, 2_000, 60.0)
    assert book.prefill_overhead_s[0] + 2_000 * book.seconds_per_token[0] < OUTLIER * before


def test_a_machine_a_hundred_times_slower_is_believed_in_time() -> None:
    """The bound on single points does not keep a slow fleet from being seen as it is."""
    book = CostBook()
    book.reach(1)
    for _ in range(30):
        book.observe_first_token(0, 2_000, 20.0)
    assert book.prefill_overhead_s[0] + 2_000 * book.seconds_per_token[0] == pytest.approx(20.0, rel=0.2)


def test_an_engine_that_becomes_slower_is_noticed() -> None:
    """Old times fade: what an engine shows now outweighs what it and its siblings showed before."""
    book = CostBook()
    book.reach(2)
    for slot, seconds_per_token in ((0, 1 / 20_000), (1, 1 / 20_000), (1, 1 / 5_000)):
        for _ in range(100):
            for tokens in (500, 4_000, 12_000):
                book.observe_first_token(slot, tokens, 0.01 + tokens * seconds_per_token)
    predicted = [book.prefill_overhead_s[slot] + 8_000 * book.seconds_per_token[slot] for slot in (0, 1)]
    assert predicted == [pytest.approx(0.41, rel=0.15), pytest.approx(1.61, rel=0.15)]


def test_engines_that_are_alike_stay_alike_while_little_is_seen() -> None:
    """Three answers of one of two equal engines, both far from the prior, do not make the other look much cheaper."""
    book = CostBook()
    book.reach(2)
    for tokens in (20, 154, 582):
        book.observe_first_token(0, tokens, 0.05 + tokens / 600)
    warm, cold = (
        book.prefill_overhead_s[slot] + left * book.seconds_per_token[slot] for slot, left in ((0, 57), (1, 345))
    )
    assert warm < cold
    assert book.seconds_per_token[0] / book.seconds_per_token[1] < 1.5


def test_leaning_on_the_fleet_spares_an_engine_a_wrong_first_slope() -> None:
    """An engine that has seen short prompts only prices long ones as the fleet does, not as its first prior did."""
    book = CostBook()
    book.reach(2)
    for _ in range(100):
        for tokens in (500, 8_000, 16_000):
            book.observe_first_token(0, tokens, 0.01 + tokens / 48_000)
        book.observe_first_token(1, 100, 0.01 + 100 / 48_000)
    assert book.seconds_per_token[1] == pytest.approx(1 / 48_000, rel=0.3)


def test_a_new_engine_starts_from_what_its_siblings_showed() -> None:
    """After learning on one engine a forgotten slot, and a new one, begin there; how long sequences stay, anew."""
    book = CostBook()
    book.reach(2)
    for _ in range(200):
        for tokens in (500, 8_000, 16_000):
            book.observe_first_token(0, tokens, 0.01 + tokens / 48_000)
            book.observe_decode(0, 10, 100, 100 * 0.03)
    book.forget(1)
    book.reach(3)
    for slot in (1, 2):
        assert book.seconds_per_token[slot] == pytest.approx(1 / 48_000, rel=0.1)
        assert book.step_base_s[slot] + 10 * book.step_per_sequence_s[slot] == pytest.approx(0.03, rel=0.1)
        assert book.residence_s[slot] == Prior().residence_s
    assert book.residence_s[0] == pytest.approx(3.0, rel=0.01)


def test_columns_have_one_entry_per_slot() -> None:
    """Room is made once, and asking for less takes nothing away."""
    book = CostBook(Prior(prefill_overhead_s=0.5, seconds_per_token=0.25, step_base_s=0.125, step_per_sequence_s=0.5))
    book.reach(3)
    book.reach(2)
    assert book.prefill_overhead_s == [0.5] * 3
    assert book.seconds_per_token == [0.25] * 3
    assert book.step_base_s == [0.125] * 3
    assert book.step_per_sequence_s == [0.5] * 3
    assert book.residence_s == [5.0] * 3


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_single_token_says_nothing_of_steps(tokens: int) -> None:
    """There is no step between one token and none; how long it stayed is learned all the same."""
    book = CostBook()
    book.reach(1)
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


def test_work_in_parts_is_work_as_a_whole() -> None:
    """Two prefills one after the other cost what one of the whole does: context counts once, at the prompt's middle."""
    whole = prefill_work(50_000, 50_000)
    parts = prefill_work(20_000, 20_000) + prefill_work(30_000, 50_000)
    assert parts == pytest.approx(whole)
    assert prefill_work(CONTEXT_SCALE_TOKENS, CONTEXT_SCALE_TOKENS) == pytest.approx(1.5 * CONTEXT_SCALE_TOKENS)
