"""Shows how far a replay has come: a moving line at a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from simulator.records import Record
from simulator.spread import at_share

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

LINES = 5
"""Progress lines per replay without a terminal."""

REFRESHED = 20
"""Records between two changes of the moving line: sorting first token times at each would cost more than the replay."""


class Display(Protocol):
    """Shows one replay after another."""

    def begin(self, name: str, requests: int) -> None:
        """Another replay begins."""
        ...

    def __call__(self, record: Record) -> None:
        """One more of its requests has ended."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tally:
    """What is known of the running replay."""

    def __init__(self, name: str, requests: int) -> None:
        self.name = name
        self.requests = requests
        self.ended = 0
        self.failed = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._ttfts_s: list[float] = []

    def count(self, record: Record) -> None:
        """Take one more record in."""
        self.ended += 1
        self.failed += not record.is_answered
        if record.is_answered:
            self._prompt_tokens += record.prompt_tokens
            self._cached_tokens += record.cached_tokens or 0
            self._ttfts_s.append(record.ttft_s or 0.0)

    def __str__(self) -> str:
        ttfts_s = sorted(self._ttfts_s)
        warm = self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0
        line = f"{warm:5.1%} warm, TTFT p50 {at_share(ttfts_s, 0.5):.2f} s, p95 {at_share(ttfts_s, 0.95):.2f} s"
        return f"{line}, {self.failed} failed" if self.failed else line


class PlainDisplay:
    """A line at every fifth of the way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tally = Tally("", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()

    def begin(self, name: str, requests: int) -> None:
        self._tally = Tally(name, requests)

    def __call__(self, record: Record) -> None:
        tally = self._tally
        tally.count(record)
        if tally.ended == tally.requests or tally.ended % max(tally.requests // LINES, 1) == 0:
            self._stream.write(f"{tally.name:<13} {tally.ended:>6} of {tally.requests} requests: {tally}\n")
            self._stream.flush()


class MovingDisplay:
    """A bar a replay."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.bars: Bars = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[so_far]}"),
        )
        self._tally = Tally("", 0)
        self._task = self.bars.add_task("", visible=False, so_far="")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def begin(self, name: str, requests: int) -> None:
        self._tally = Tally(name, requests)
        self._task = self.bars.add_task(name, total=requests, so_far="")

    def __call__(self, record: Record) -> None:
        tally = self._tally
        tally.count(record)
        if tally.ended % REFRESHED == 0 or tally.ended == tally.requests:
            self.bars.update(self._task, completed=tally.ended, so_far=str(tally))


def make_display(stream: TextIO = sys.stdout) -> Display:
    """What suits the stream, and what is installed: rich is an extra."""
    if stream.isatty():
        with suppress(ModuleNotFoundError):
            return MovingDisplay()
    return PlainDisplay(stream)
