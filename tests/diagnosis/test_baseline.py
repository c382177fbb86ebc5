"""A week of what is normal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from diagnosis.baseline import (
    FORGET_S,
    HOURS,
    MAX_KINDS,
    Baseline,
    HourTimes,
    InvalidBaseline,
    Level,
    dump_baseline,
    hour_of_week,
    learned,
    load_baseline,
)
from diagnosis.distribution import TOKEN_LIMITS, distribution_of
from diagnosis.facts import FleetFacts
from diagnosis.request_times import Phase, RequestTimes, TrafficKey
from tests.diagnosis.scene import NOW_S, fleet, later, seconds

KEY = TrafficKey("m", "p")


def times(at_s: float, requests: int = 30, prefill_s: float = 0.5, tokens: float = 500.0) -> RequestTimes:
    return RequestTimes(
        start_s=at_s - 60,
        end_s=at_s,
        requests=requests,
        phases={Phase.PREFILL: seconds(*[prefill_s] * requests)},
        prompt_tokens=distribution_of([tokens] * requests, TOKEN_LIMITS),
    )


def facts_at(at_s: float, **changes: float) -> FleetFacts:
    return replace(later(fleet(), at_s - NOW_S), times={KEY: times(at_s, **changes)})  # type: ignore[arg-type]


def test_hours_repeat_weekly() -> None:
    """168 of them."""
    assert hour_of_week(0.0) == 0
    assert hour_of_week(HOURS * 3600.0 + 7200.0) == 2


def test_a_window_is_counted_once() -> None:
    """Looks overlap; what was counted is skipped."""
    facts = facts_at(NOW_S)
    held = learned(learned(Baseline(), facts), facts)
    assert held.times_at(NOW_S)[KEY].times.requests == 30
    held = learned(held, facts_at(NOW_S + 60))
    assert held.times_at(NOW_S)[KEY].times.requests == 60


def test_each_hour_has_its_own_times_where_it_has_enough() -> None:
    """An hour with few requests borrows from its neighbours, then from the week."""
    held = Baseline()
    for step in range(8):
        held = learned(held, facts_at(NOW_S + 60 * step, prefill_s=0.1))
    for step in range(8):
        held = learned(held, facts_at(NOW_S + 36_000 + 60 * step, prefill_s=2.0))
    first = held.times_at(NOW_S)[KEY].times.phases[Phase.PREFILL].mean
    later = held.times_at(NOW_S + 36_000)[KEY].times.phases[Phase.PREFILL].mean
    elsewhere = held.times_at(NOW_S + 80_000)[KEY].times.phases[Phase.PREFILL].mean
    assert [first, later, elsewhere] == pytest.approx([0.1, 2.0, 1.05])


def test_last_week_fades() -> None:
    """What the hour had a week ago counts half when it comes again."""
    held = learned(Baseline(), facts_at(NOW_S))
    held = learned(held, facts_at(NOW_S + HOURS * 3600))
    assert held.times_at(NOW_S)[KEY].times.requests == 45


def test_levels_are_means_of_engines() -> None:
    """Unknown until there are a few values."""
    held = learned(Baseline(), facts_at(NOW_S))
    assert held.level("chat/either", "hit_rate", NOW_S) is None
    held = learned(held, facts_at(NOW_S + 60))
    assert held.level("chat/either", "hit_rate", NOW_S) == pytest.approx(0.6)
    assert held.level("chat/either", "hit_rate", NOW_S + 36_000) == pytest.approx(0.6)
    assert held.level("nothing", "hit_rate", NOW_S) is None


def test_kinds_of_traffic_are_bounded() -> None:
    """More kinds than a baseline keeps are counted together."""
    many = {TrafficKey(f"m{number}"): times(NOW_S) for number in range(MAX_KINDS + 5)}
    held = learned(Baseline(), replace(fleet(), times=many))
    assert len({key for key, _ in held.times}) <= MAX_KINDS + 1
    assert sum(each.times.requests for each in held.times.values()) == 30 * (MAX_KINDS + 5)


def test_what_is_not_seen_for_two_weeks_is_dropped() -> None:
    """Kinds of traffic and figures of pools that are gone leave their places to those that are there."""
    gone = replace(KEY, model="gone")
    facts = replace(facts_at(NOW_S), times={gone: times(NOW_S)})
    held = learned(Baseline(), facts)
    subjects = set(held.levels)
    later = NOW_S + FORGET_S - 3_600
    held = learned(held, replace(facts_at(later), pods=()))
    assert {key for key, _ in held.times} == {KEY, gone}
    held = load_baseline(json.loads(json.dumps(dump_baseline(held))))
    held = learned(held, replace(facts_at(later + 7_200), pods=()))
    assert {key for key, _ in held.times} == {KEY}
    assert {name for name, _ in subjects - set(held.levels)} >= {"chat/either"}
    assert set(held.levels) == {("", "redis_s"), ("", "loop_lag_s")}


def test_a_baseline_of_an_older_version_begins_to_be_forgotten_when_it_was_saved() -> None:
    """It has no times at which its entries were seen."""
    document = dump_baseline(learned(Baseline(), facts_at(NOW_S)))
    for entry in (*document["times"], *document["levels"]):
        del entry["seen_s"]
    held = load_baseline(document)
    assert {each.seen_s for each in held.times.values()} == {NOW_S}
    assert {each.seen_s for each in held.levels.values()} == {NOW_S}


def test_a_baseline_is_stored_as_json() -> None:
    """Reading gives what was written, to four digits."""
    held = Baseline(configuration="abc")
    for step in range(4):
        held = learned(held, facts_at(NOW_S + 60 * step))
    document = json.loads(json.dumps(dump_baseline(held)))
    back = load_baseline(document)
    assert back.configuration == "abc"
    assert back.levels.keys() == held.levels.keys()
    assert back.times_at(NOW_S)[KEY].times.requests == 120
    assert dump_baseline(back) == dump_baseline(load_baseline(dump_baseline(back)))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("baseline", 2, "baseline"),
        ("saved_at_s", "x", "saved_at_s"),
        ("times", 3, "times"),
        ("times", [3], "times.0"),
        ("times", [{"hour": 400}], "times.0"),
        ("levels", [{"subject": "a", "name": "b", "hours": {"3": [1]}}], "levels.0.hours"),
        ("levels", [{"subject": "a", "name": "b", "hours": {"3": [1, float("nan")]}}], "levels.0.hours"),
    ],
)
def test_a_damaged_document_names_its_field(field: str, value: object, named: str) -> None:
    """And nothing else is raised."""
    document = dump_baseline(learned(Baseline(), facts_at(NOW_S)))
    with pytest.raises(InvalidBaseline, match=f"^{named}"):
        load_baseline(document | {field: value})
    with pytest.raises(InvalidBaseline):
        load_baseline([])


def test_a_full_baseline_can_be_read_again() -> None:
    """With all kinds of traffic, and what is counted beside them, in each hour of a week."""
    held = times(NOW_S)
    kinds = [TrafficKey(f"m{number}") for number in range(MAX_KINDS)] + [TrafficKey()]
    every = {(kind, hour): HourTimes(held, 60.0) for kind in kinds for hour in range(HOURS)}
    levels = {("p" * 512 + "/prefill", "gap_s"): Level({0: (1.0, 10.0)})}
    back = load_baseline(dump_baseline(Baseline(times=every, levels=levels)))
    assert (back.times.keys(), back.levels) == (every.keys(), levels)


def test_a_clock_that_was_ahead_does_not_end_learning() -> None:
    """Requests are counted again from the second look on."""
    held = learned(Baseline(), facts_at(NOW_S + 10**8))
    for step in range(3):
        held = learned(held, facts_at(NOW_S + 60 * step))
    assert held.times[KEY, hour_of_week(NOW_S)].times.requests == 60


@pytest.mark.parametrize(
    "distribution",
    [
        {"limits": [0.0, 1.0], "counts": {}, "total": 0},
        {"limits": [1.0], "counts": {"\u00b2": 1}, "total": 0},
        {"limits": [1.0], "counts": {"9" * 5000: 1}, "total": 0},
        {"limits": [1.0], "counts": {}, "total": 10**400},
    ],
)
def test_numbers_that_cannot_be_read_are_named(distribution: object) -> None:
    """A file that someone has edited must not end the diagnosis at each start."""
    document = dump_baseline(learned(Baseline(), facts_at(NOW_S)))
    document["times"][0]["phases"] = {"prefill": distribution}
    with pytest.raises(InvalidBaseline):
        load_baseline(document)
