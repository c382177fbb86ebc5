"""Intervals: said with their source, wider where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

from simulator.engine_profile import COMPUTED, MEASURED, UNVERIFIED, EngineProfile
from simulator.intervals import explain_intervals, fast_and_slow
from simulator.profile import Profile
from simulator.replay import Setting, play
from simulator.report import RoutingReport, report_on
from simulator.traces import Arrival, make_trace

MINE = EngineProfile(Profile(), MEASURED, "one core", "small", "2026-11-24", spread={"prefill": 0.1})

TRACE = make_trace("two", [Arrival(0.0, 4_000, 20), Arrival(0.01, 4_000, 20)], None)


def report(profile: Profile) -> RoutingReport:
    return report_on(play(TRACE, Setting("round-robin", 1, profile)), profile)


def verdict_of(profile: EngineProfile, hardware: str | None) -> tuple[str, float]:
    """What is said, and the width of the interval of the median TTFT."""
    fast, slow = (report(end) for end in fast_and_slow(profile.engine, profile.spread_on(hardware)))
    return explain_intervals(profile, hardware, [(fast, slow)]), slow.ttft_s.p50 - fast.ttft_s.p50


def test_measured_engines_are_named_with_their_date() -> None:
    """And with the residuals of the fit as their spread."""
    words, _ = verdict_of(MINE, None)
    assert "measured on 2026-11-24: small on one core" in words
    assert "off by 10%" in words
    assert UNVERIFIED not in words
    assert "round-robin: TTFT p50" in words


def test_other_hardware_is_unverified_and_wider() -> None:
    """Computed profiles and hardware other than the measured one."""
    _, narrow = verdict_of(MINE, None)
    for words, wide in (verdict_of(MINE, "H200"), verdict_of(replace(MINE, source=COMPUTED), None)):
        assert UNVERIFIED in words.replace("\n", " ")
        assert wide > 3 * narrow


def test_a_live_replay_has_no_intervals() -> None:
    """It is played once; the source is said all the same."""
    words = explain_intervals(MINE, None, [])
    assert words.endswith("off by 10%.")
