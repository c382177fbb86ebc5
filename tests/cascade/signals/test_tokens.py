"""Log-probabilities to signals: right for plain cases, the same way round, and never in the way of odd engines."""

from math import exp, inf, isfinite, isnan, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.signals.tokens import SIGNALS, TokenSignals, quantile, read_signals


def test_one_token_of_two() -> None:
    """Margin, log-probability and entropy of a coin that falls 3 in 4."""
    signals = read_signals([(log(0.75), (log(0.75), log(0.25)))])
    assert signals.tokens == 1
    assert signals.margin == pytest.approx(0.5)
    assert signals.mean == signals.low == signals.least == pytest.approx(log(0.75))
    assert signals.entropy == pytest.approx(0.75 * log(0.75) + 0.25 * log(0.25))


def test_length_does_not_count() -> None:
    """The same token ten times says what it says once."""
    token = (log(0.6), (log(0.6), log(0.3)))
    once, often = read_signals([token]), read_signals([token] * 10)
    assert all(getattr(often, name) == pytest.approx(getattr(once, name)) for name in SIGNALS)


def test_nothing_reported_is_nothing_known() -> None:
    """No tokens: nan everywhere, so that nothing is kept by mistake."""
    assert all(isnan(read_signals([]).value_of(name)) for name in SIGNALS)
    assert isnan(TokenSignals(tokens=3, margin=1.0).value_of("colour"))


def test_a_token_that_was_not_the_likeliest_lowers_only_its_own() -> None:
    """Sampling may choose the second; the margin is that of the place, the log-probability that of the choice."""
    signals = read_signals([(log(0.2), (log(0.2), log(0.7)))])
    assert signals.margin == pytest.approx(0.5)
    assert signals.mean == pytest.approx(log(0.2))


TOKENS = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=20)


@given(TOKENS)
def test_surer_is_higher(chances: list[float]) -> None:
    """Every signal rises, or stays, when every token is likelier."""
    doubtful = read_signals([(log(c), (log(c), log((1 - c) + 1e-9))) for c in chances if c >= 0.5] or [(log(0.5), ())])
    sure = read_signals([(log(0.5 + c / 2), (log(0.5 + c / 2), log(0.5 - c / 2 + 1e-9))) for c in chances if c >= 0.5])
    assert sure.tokens == 0 or all(sure.value_of(name) >= doubtful.value_of(name) - 1e-6 for name in SIGNALS)


ODD = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(ODD, st.lists(ODD, max_size=4)), min_size=1, max_size=8))
def test_odd_numbers_give_numbers(tokens: list[tuple[float, list[float]]]) -> None:
    """Engines send minus infinity, -9999 and worse: all signals stay finite."""
    signals = read_signals(tokens)
    assert all(isfinite(signals.value_of(name)) for name in SIGNALS)


@pytest.mark.parametrize("logprob", [nan, -inf, inf, 7.0, -9999.0])
def test_what_is_no_log_probability_counts_as_impossible(logprob: float) -> None:
    """Nobody is believed sure by a broken number."""
    assert exp(read_signals([(logprob, ())]).mean) < 1e-40


def test_quantiles_lie_between_values() -> None:
    """Straight between the two nearest."""
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    assert quantile([5.0], 0.1) == 5.0
