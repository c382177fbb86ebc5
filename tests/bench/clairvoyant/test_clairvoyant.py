"""Placements are priced as engines play them; a search never keeps a worse one; the bound is below all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.clairvoyant.__main__ import Best, _pack, best_start, line_of, mean_line, placement_of, schedule_of
from bench.clairvoyant.bound import lower_bound_s
from bench.clairvoyant.schedule import READER_TPOT_S, Player, Schedule, lateness_of, lateness_s, play_schedule
from bench.clairvoyant.search import HOLDS_S, Effort, Search, followers
from bench.clairvoyant.traffic import ENGINES as TABLE_ENGINES
from bench.clairvoyant.traffic import PROFILE as TABLE_PROFILE
from simulator.profile import Profile
from simulator.replay import Setting, play
from simulator.traces import Arrival, Trace
from simulator.workload import TEAMS, generate

PROFILE = Profile(prefill_tokens_per_s=12_000, kv_capacity_tokens=200_000, block_size=16)

ENGINES = 3

TRACE = generate(replace(TEAMS, requests_per_s=4.0), 120, seed=5, name="small")


def _by_turns(trace: Trace = TRACE) -> Schedule:
    count = len(trace.arrivals)
    return Schedule(tuple(index % ENGINES for index in range(count)), (0.0,) * count)


def _mean_of(trace: Trace, schedule: Schedule) -> float:
    """Lateness on the engines of the bench."""
    records = play_schedule(trace, TABLE_PROFILE, schedule, TABLE_ENGINES)
    return sum(map(lateness_of, records)) / len(records)


def _mean(schedule: Schedule) -> float:
    records = play_schedule(TRACE, PROFILE, schedule, ENGINES)
    return sum(map(lateness_of, records)) / len(records)


def test_a_placement_is_played_as_the_replay_plays_it() -> None:
    """The same engines for the same requests give the same times as the router's own replay."""
    replayed = play(TRACE, Setting("warm", ENGINES, PROFILE, 0)).records
    places = tuple(int((one.pod or "").removeprefix("pod-").partition("#")[0]) for one in replayed)
    records = play_schedule(TRACE, PROFILE, Schedule(places, (0.0,) * len(places)), ENGINES)
    for one, other in zip(records, replayed, strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s)
        assert one.cached_tokens == other.cached_tokens
        assert one.duration_s == pytest.approx(other.duration_s)


def test_a_search_begins_with_what_policies_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No policy's placement is better than that with which a search begins, nor the kept one."""
    monkeypatch.setattr("bench.clairvoyant.__main__.KEPT", tmp_path / "none.json")
    trace = replace(TRACE, arrivals=TRACE.arrivals[:40])
    began_s = _mean_of(trace, best_start("small", trace))
    for policy in ("warm", "llm-d-sticky", "session-affinity"):
        found = placement_of(trace, policy, 0)
        assert found is not None
        assert began_s <= _mean_of(trace, found)


def test_lateness_is_ttft_and_what_a_slow_stream_costs() -> None:
    """A stream at the reader's pace costs nothing; behind it, each token costs its delay."""
    assert lateness_s(1.5, READER_TPOT_S, 100) == 1.5
    assert lateness_s(1.5, READER_TPOT_S + 0.01, 101) == pytest.approx(2.5)
    assert lateness_s(1.5, 9.0, 1) == 1.5


def test_a_held_request_waits_that_long() -> None:
    """TTFT counts from the arrival, not from when the request is sent."""
    count = len(TRACE.arrivals)
    held = Schedule((0,) * count, (2.0,) + (0.0,) * (count - 1))
    assert (play_schedule(TRACE, PROFILE, held, 1)[0].ttft_s or 0.0) >= 2.0


def test_a_search_only_improves() -> None:
    """From requests by turns, seconds of search find less lateness, and every request keeps one engine."""
    search = Search(TRACE, PROFILE, ENGINES, _by_turns())
    for _ in range(60):  # As many seconds as a busy machine needs; one is enough for an idle one.
        search.sweep(Effort(1.0, window_s=10.0, horizon_s=60.0))
        if search.kept:
            break
    assert search.kept > 0
    assert len(search.schedule.engines) == len(TRACE.arrivals)
    assert set(search.schedule.engines) <= set(range(ENGINES))
    assert _mean(search.schedule) < _mean(_by_turns())


def test_the_bound_is_below_every_placement() -> None:
    """Of requests by turns and of one that was searched for."""
    bound_s = lower_bound_s(TRACE, PROFILE, ENGINES)
    search = Search(TRACE, PROFILE, ENGINES, _by_turns())
    search.sweep(Effort(1.0, window_s=10.0, horizon_s=60.0))
    assert 0 < bound_s < _mean(search.schedule)


def test_the_bound_of_a_burst_serves_the_shortest_first() -> None:
    """Two prompts at once on one engine: the shorter first, as one server of all engines' speed."""
    profile = Profile(prefill_tokens_per_s=1_000, prefill_quadratic_tokens=1e12, step_base_s=1e-9)
    trace = Trace("two", (Arrival(0.0, 3_000, 1), Arrival(0.0, 1_000, 1)), 16)
    assert lower_bound_s(trace, profile, 1) == pytest.approx((1.0 + 4.0) / 2)


def test_followers_are_later_turns() -> None:
    """A conversation's next prompt follows the one before; a stranger's does not."""
    chain = tuple((first, 1) for first in range(1, 9))
    turns = (
        Arrival(0.0, 64, 1, runs=chain[:4]),
        Arrival(1.0, 128, 1, runs=chain),
        Arrival(2.0, 64, 1, runs=((90, 4),)),
    )
    assert followers(Trace("turns", turns, 16)) == [[1], [], []]


def test_a_kept_placement_is_read_as_it_was() -> None:
    """Engines and holds, request by request."""
    best = Best(3, "today", 1.0, _pack(bytes((0, 2, 1))), _pack(bytes((0, 1, 0))))
    assert schedule_of(best) == Schedule((0, 2, 1), (HOLDS_S[0], HOLDS_S[1], HOLDS_S[0]))


def test_failed_requests_stand_apart() -> None:
    """They are counted, and not in any mean."""
    records = play_schedule(TRACE, PROFILE, _by_turns(), ENGINES)
    failed = replace(records[0], ttft_s=None, failure="timeout")
    line = line_of("x", [failed, *records[1:]])
    assert line.failed == 1
    assert line.ttft_mean_s == pytest.approx(sum(one.ttft_s or 0.0 for one in records[1:]) / (len(records) - 1))


def test_several_runs_make_one_row() -> None:
    """Means, the sum of failed requests, and how far lateness strays; one run is what it is."""
    records = play_schedule(TRACE, PROFILE, _by_turns(), ENGINES)
    one = replace(line_of("x", records), lateness_s=1.0, failed=1)
    both = mean_line([one, replace(one, lateness_s=3.0, failed=2)])
    assert (both.name, both.lateness_s, both.failed) == ("x", 2.0, 3)
    assert both.lateness_sd_s == pytest.approx(2.0**0.5)
    assert both.ttft_p95_s == pytest.approx(one.ttft_p95_s)
    assert mean_line([one]) is one


def test_a_copy_is_independent() -> None:
    """Playing on from a saved state leaves the state."""
    player = Player(TRACE, PROFILE)
    state = player.fresh()
    player.play(state, range(20), {}, TRACE.arrivals[20].at_s)
    first = player.play(state.copy(), range(20, 60), {})
    again = player.play(state.copy(), range(20, 60), {})
    assert {index: one.ttft_s for index, one in first.items()} == {index: one.ttft_s for index, one in again.items()}
