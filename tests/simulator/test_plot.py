"""A picture is drawn without a display, whatever there is to draw."""

import struct
from pathlib import Path

import pytest

from simulator.plot import draw
from simulator.profile import Profile
from simulator.records import Record, Replay
from simulator.report import Report, report_on


def replay(routing: str, records: int) -> Replay:
    reported = tuple(
        Record(number, float(number), 4000, 9, f"pod-{number % 2}", 100, 64 * number, 0.4, 0.3 + number / 50, 1.5)
        for number in range(records)
    )
    return Replay(routing, "by hand", ("pod-0", "pod-1"), reported, length_s=60.0, took_s=1.0)


@pytest.mark.parametrize("records", [0, 1, 40])
@pytest.mark.parametrize("routings", [("warm",), ("round-robin", "mine", "another", "warm")])
def test_a_picture_is_a_png_of_some_size(tmp_path: Path, routings: tuple[str, ...], records: int) -> None:
    """Also of a replay in which nothing was answered, and of routings that have no colour of their own."""
    replays = [replay(routing, records) for routing in routings]
    draw(Report("by hand", {}, tuple(report_on(one, Profile()) for one in replays)), replays, tmp_path / "plot.png")
    head = (tmp_path / "plot.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:]) == (1560, 975)
