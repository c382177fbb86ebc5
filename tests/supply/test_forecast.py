"""The forecast: better where there is a pattern, otherwise the reactive figure."""

from __future__ import annotations

from collections.abc import Callable
from math import sin
from random import Random

import pytest

from supply.forecast import WorkForecast, WorkHistory, forecast, observe
from supply.load import OfferedWork
from tests.supply.builders import MONDAY_S, work

DAY_S = 86_400.0
HORIZON_S = 330.0


def office(at: float) -> float:
    """Work from 9 to 18, from one minute to the next."""
    return 10.0 if 9 <= at % DAY_S / 3_600 < 18 else 2.0


def learned(rate: Callable[[float], float], days: float, *, seed: int = 1, noise: float = 0.05) -> WorkHistory:
    """Return what a curve of some days leaves behind, observed every two minutes."""
    random, history = Random(seed), WorkHistory()
    at = 0.0
    while at < days * DAY_S:
        value = work(rate(at) * max(1 + random.gauss(0, noise), 0.1))
        history = observe(history, value, MONDAY_S + at, HORIZON_S, noise)
        at += 120.0
    return history


def ahead(history: WorkHistory, at: float, **options: bool) -> WorkForecast:
    return forecast(history, MONDAY_S + at, HORIZON_S, **options)


@pytest.fixture(scope="module")
def after_days() -> WorkHistory:
    """Four days and nearly nine hours: 08:57 on a Friday."""
    return learned(office, 4 + 8.95 / 24)


def test_a_daily_edge_is_expected_before_it_comes(after_days: WorkHistory) -> None:
    """At 08:57 the work of 09:02 is in the forecast; the reactive figure has nothing of it."""
    found = ahead(after_days, (4 + 8.95 / 24) * DAY_S)
    assert found.weight > 0.9
    assert found.work.requests > 8.0
    assert found.reactive < 0.3 * found.used
    assert ahead(after_days, (4 + 8.95 / 24) * DAY_S, use_profiles=False).work.requests < 2.5


def test_its_own_error_is_shown_and_smaller_than_that_of_the_level(after_days: WorkHistory) -> None:
    """Root mean squares of logarithms, by way."""
    errors = dict(ahead(after_days, (4 + 8.95 / 24) * DAY_S).errors)
    assert errors["day"] < 0.8 * errors["level"]


def test_a_level_shift_scales_the_profile() -> None:
    """A day with half the work: the edge is expected at half its height."""
    history = learned(lambda at: office(at) * (0.5 if at > 4 * DAY_S else 1.0), 4 + 8.95 / 24)
    assert ahead(history, (4 + 8.95 / 24) * DAY_S).work.requests == pytest.approx(5.0, rel=0.3)


def test_without_a_pattern_no_profile_is_followed() -> None:
    """Levels that change at random: the forecast is the reactive figure."""
    random = Random(3)
    values = [random.uniform(2, 10) for _ in range(400)]
    history = learned(lambda at: values[int(at // 5_400)], 6)
    found = ahead(history, 6 * DAY_S)
    assert found.weight == 0.0
    assert found.used == found.reactive


def test_weekends_are_separated_from_weekdays_after_three_weeks() -> None:
    """Mondays differ from Sundays: on a Sunday morning no edge is expected, on a Monday it is."""

    def weekly(at: float) -> float:
        return 2.0 if int(at // DAY_S) % 7 >= 5 else office(at)

    sunday = 20 + 8.95 / 24
    assert ahead(learned(weekly, sunday), sunday * DAY_S).work.requests < 4.0
    monday = 21 + 8.95 / 24
    assert ahead(learned(weekly, monday), monday * DAY_S).work.requests > 8.0


def test_missing_hours_leave_the_reactive_figure() -> None:
    """Nothing was observed from 6 to 12 of any earlier day: a profile cannot be followed at 8."""
    history, at, random = WorkHistory(), 0.0, Random(1)
    while at < (3 + 8 / 24) * DAY_S:
        if not 6 <= at % DAY_S / 3_600 < 12 or at >= 3 * DAY_S:
            history = observe(history, work(office(at) * random.uniform(0.95, 1.05)), MONDAY_S + at, HORIZON_S, 0.05)
        at += 120.0
    found = ahead(history, at)
    assert found.profile is None
    assert found.used == found.reactive


def test_a_rise_is_followed_at_once_and_a_fall_slowly() -> None:
    """Three times the work within a minute; an empty minute takes less than half of the level."""
    history = learned(lambda _: 4.0, 0.2)
    at = MONDAY_S + 0.2 * DAY_S
    history = observe(history, work(4.0), at, HORIZON_S, 0.05)
    higher = observe(history, work(12.0), at + 60, HORIZON_S, 0.05)
    assert forecast(higher, at + 60, HORIZON_S).work.requests > 11.0
    lower = observe(history, OfferedWork(), at + 60, HORIZON_S, 0.05)
    assert forecast(lower, at + 60, HORIZON_S).work.requests > 2.0


def test_a_clock_that_goes_back_changes_nothing_but_the_time() -> None:
    """Three hours back and on: the level stays, no error is judged by it."""
    history = learned(lambda at: 5.0 + sin(at / 9_000), 1)
    at = MONDAY_S + DAY_S
    back = observe(history, work(5.0), at - 10_800, HORIZON_S, 0.05)
    assert back.errors == history.errors
    assert back.level == history.level
    on = observe(back, work(5.0), at, HORIZON_S, 0.05)
    assert forecast(on, at, HORIZON_S).work.requests == pytest.approx(5.0, rel=0.25)


def test_the_level_is_more_certain_the_longer_it_was_measured() -> None:
    """Windows of a minute, every quarter of it: the noise of the level falls to a third of the first window's."""
    history, noises = WorkHistory(), []
    for at in range(40):
        history = observe(history, work(10.0), MONDAY_S + 15 * at, HORIZON_S, 0.2, window_s=60.0)
        noises.append(ahead(history, 15 * at).noise)
    assert noises[0] == pytest.approx(0.2)
    assert 0.08 < noises[-1] < 0.12
    assert noises == sorted(noises, reverse=True)
