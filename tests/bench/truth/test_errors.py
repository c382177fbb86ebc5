"""Errors of the truth table: against the median of repeats, and against the engine's own."""

from __future__ import annotations

import pytest

from bench.truth.errors import BOUNDS, Row, median_error, relative, targets_of
from bench.truth.playing import Request, Run, figures_of
from bench.truth.report import table

NAMES = (*BOUNDS, "preemptions")


def row(simulated: float, *real: float) -> Row:
    """A workload of which every figure is the same."""
    runs = [Run(dict.fromkeys(NAMES, value)) for value in real]
    return Row("any", 10, dict.fromkeys(NAMES, simulated), runs)


def test_an_error_is_relative_to_the_median_repeat() -> None:
    """One disturbed repeat does not move it."""
    assert row(110.0, 100.0, 100.0, 900.0).error("ttft p50") == pytest.approx(0.1)
    assert row(80.0, 100.0).error("throughput") == pytest.approx(-0.2)


def test_few_cached_tokens_are_no_large_error() -> None:
    """Below two blocks the error counts against two blocks; where nothing is expected, anything else is all wrong."""
    assert relative(32.0, 0.0, "cached") == pytest.approx(0.5)
    assert relative(1.0, 0.0, "tpot p50") == 1.0
    assert relative(0.0, 0.0, "tpot p50") == 0.0


def test_the_engines_own_error_is_its_repeats() -> None:
    """The median deviation; with one repeat nothing is known, which counts as none."""
    assert row(1.0, 90.0, 100.0, 120.0).own_error("tpot p90") == pytest.approx(0.1)
    assert row(1.0, 90.0).own_error("tpot p90") == 0.0


def test_targets_widen_with_the_engines_own_error() -> None:
    """A tenth, or 1.5 times what the engine differs from itself; tails a fifth."""
    steady = {one.wanted: one for one in targets_of([row(112.0, 100.0)] * 12, 12)}
    assert not steady["ttft p50, median error"].is_met
    assert steady["ttft p99, median error"].is_met
    assert steady["workloads played"].is_met
    shaky = {one.wanted: one for one in targets_of([row(112.0, 90.0, 100.0, 110.0)] * 12, 12)}
    assert shaky["ttft p50, median error"].bound == pytest.approx(0.15)
    assert shaky["ttft p50, median error"].is_met


def test_too_few_workloads_fall_short() -> None:
    """None at all has one line, which is not met."""
    assert [one.is_met for one in targets_of([], 12)] == [False]


def test_a_machine_that_others_use_voids_the_table() -> None:
    """Half a core beside pods and client is too much."""
    busy = Row("any", 10, dict.fromkeys(NAMES, 1.0), [Run(dict.fromkeys(NAMES, 1.0), others_share=0.9)])
    assert [one.wanted.partition(",")[0] for one in targets_of([busy] * 12, 12) if not one.is_met] == [
        "processor time of others"
    ]


def test_the_median_is_over_workloads() -> None:
    """One bad workload of three does not decide."""
    rows = [row(100.0, 100.0), row(105.0, 100.0), row(300.0, 100.0)]
    assert median_error(rows, "cached") == pytest.approx(0.05)


def test_figures_are_summed_from_requests() -> None:
    """Answers of one token have no TPOT; throughput runs to the last token."""
    requests = [Request(0.5, 0.1, 32, 11, 2.0), Request(1.5, None, 0, 1, 4.0)]
    figures = figures_of(requests, 3.0)
    assert figures["throughput"] == 3.0
    assert figures["tpot p99"] == 0.1
    assert figures["ttft p90"] == 1.5
    assert (figures["cached"], figures["preemptions"]) == (32.0, 3.0)


def test_the_table_shows_every_figure() -> None:
    """Real, error and own error, and the medians below."""
    text = table("One pod", [row(110.0, 100.0)])
    assert text.count("+10.0") == len(BOUNDS)
    assert "median error" in text
