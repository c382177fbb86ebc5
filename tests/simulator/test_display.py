"""Progress is told a few times on a plain stream, and moves at a terminal."""

import io
import sys

import pytest

from simulator.display import LINES, MovingDisplay, PlainDisplay, make_display
from simulator.records import Record


def record(index: int, failure: str = "") -> Record:
    return Record(index, 0.0, 1000, 5, "pod-0", None, 250, None, 0.5, 1.0, failure)


def test_a_plain_stream_gets_a_few_lines() -> None:
    """As many as said, the last one at the end, with what is known by then."""
    stream = io.StringIO()
    with make_display(stream) as display:
        display.begin("warm", 100)
        for index in range(99):
            display(record(index))
        display(record(99, "pod_lost"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == LINES
    reported = " ".join(lines[-1].split())
    assert reported == "warm 100 of 100 requests: 25.0% warm, TTFT p50 0.50 s, p95 0.50 s, 1 failed"


def test_a_replay_of_few_requests_is_reported_too() -> None:
    """Fewer requests than lines are no division by zero."""
    stream = io.StringIO()
    with PlainDisplay(stream) as display:
        for name in ("one", "two"):
            display.begin(name, 1)
            display(record(0))
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["one", "two"]


def test_a_terminal_gets_a_moving_line_a_replay() -> None:
    """It can be entered again for the next replay."""
    display = MovingDisplay()
    for name in ("round-robin", "warm"):
        with display:
            display.begin(name, 2)
            display(record(0))
            display(record(1))
    assert [task.completed for task in display.bars.tasks if task.visible] == [2, 2]


class Terminal(io.StringIO):
    """Says that somebody is looking."""

    def isatty(self) -> bool:
        return True


def test_without_rich_a_terminal_gets_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra; progress is told either way."""
    assert isinstance(make_display(Terminal()), MovingDisplay)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert isinstance(make_display(Terminal()), PlainDisplay)
