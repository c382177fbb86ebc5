"""What a person is told: a table, how it came about, and what speaks against it."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.profile import Profile
from simulator.publish import explain_method, publish, warnings
from simulator.records import Record, Replay
from simulator.report import Report, report_on
from simulator.spread import spread_of
from simulator.table import explain_failures, tabulate
from simulator.traces import Arrival, make_trace

TRACE = make_trace("by hand", [Arrival(at, 4000, 9) for at in (0.0, 30.0)], None)


def replay(routing: str, *, ttft_s: float = 1.5, failure: str = "") -> Replay:
    records = (
        Record(0, 0.0, 4000, 9, "pod-0", 2000, 1000, 1.0, ttft_s, 2.5),
        Record(1, 30.0, 4000, 9, "pod-1", failure=failure, ttft_s=None if failure else ttft_s, duration_s=1.0),
    )
    return Replay(routing, "by hand", ("pod-0", "pod-1"), records, length_s=31.0, took_s=0.1)


def report(*replays: Replay) -> Report:
    return Report("by hand", {}, tuple(report_on(one, Profile()) for one in replays))


def test_the_table_has_a_line_a_routing_in_aligned_columns() -> None:
    """Figures end below the end of their heads, whatever their width."""
    lines = tabulate(report(replay("round-robin", ttft_s=12.25), replay("warm"))).splitlines()
    assert lines[0].split()[:2] == ["routing", "warm"]
    assert set(lines[1]) == {"-"}
    assert lines[2].split()[:4] == ["round-robin", "12.5%", "12.25", "s"]
    assert lines[3].split()[:4] == ["warm", "12.5%", "1.50", "s"]
    assert len({len(line) for line in lines}) == 1


def test_what_was_never_measured_is_a_dash() -> None:
    """A table of zeros would look like a fast pod."""
    empty = replace(replay("warm"), records=())
    assert tabulate(report(empty)).splitlines()[2].split()[2] == "-"


def test_failures_are_named() -> None:
    """Which routing, how many, why; nothing where all went well."""
    assert explain_failures(report(replay("warm", failure="pod_lost"))) == "warm: 1 failed: pod_lost"
    assert explain_failures(report(replay("warm"))) == ""


def test_the_method_says_how_it_was_played() -> None:
    """In virtual time, or over HTTP with the machine's share."""
    virtual = explain_method(TRACE, Profile(), report(replay("warm")))
    assert "2 requests in 30 s" in virtual
    assert "virtual time" in virtual
    assert "310 times" in virtual
    live = replace(replay("warm"), is_live=True, late_s=spread_of([0.01]), busy=0.4)
    reported = " ".join(explain_method(TRACE, Profile(time_scale=8.0), report(live)).split())
    assert "8 times as fast as real time" in reported
    assert "40% busy" in reported


def test_a_machine_that_could_not_keep_up_is_reported() -> None:
    """Figures of a machine that was the bottleneck are said to be doubtful."""
    fine = replace(replay("warm"), is_live=True, late_s=spread_of([0.01]), busy=0.4)
    assert warnings(report(fine)) == []
    busy = replace(fine, busy=0.97)
    late = replace(fine, late_s=spread_of([1.0]))
    assert len(warnings(report(busy, late))) == 2


def test_publishing_writes_table_report_and_picture(tmp_path: Path) -> None:
    """Into a folder that need not be there."""
    stream = io.StringIO()
    publish(TRACE, Profile(), [replay("round-robin"), replay("warm")], tmp_path / "out" / "here", stream)
    assert sorted(path.name for path in (tmp_path / "out" / "here").iterdir()) == ["plot.png", "report.json"]
    assert "round-robin" in stream.getvalue()
    assert "plot.png" in stream.getvalue()


def test_without_matplotlib_there_is_a_table_and_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra; what is missing is named."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    stream = io.StringIO()
    publish(TRACE, Profile(), [replay("warm")], tmp_path, stream)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert "no picture: matplotlib" in stream.getvalue()
    assert "hearth-gateway[simulate]" in stream.getvalue()
