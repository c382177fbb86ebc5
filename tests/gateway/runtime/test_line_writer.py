"""Lines reach their file from another thread; whoever does not read them blocks nobody."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.runtime.line_writer import LineWriter


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    """What stood in the file stays before them."""
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    writer = LineWriter(path)
    writer.put(b"one\n")
    writer.put(b"two\nthree\n", 2)
    writer.close()
    assert path.read_bytes() == b"old\none\ntwo\nthree\n"
    assert writer.dropped_lines == 0


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    """As logrotate does it: lines before the signal in the old file, after it in the new one."""
    path = tmp_path / "log"
    writer = LineWriter(path)
    writer.put(b"before\n")
    path.rename(tmp_path / "log.1")
    writer.reopen()
    writer.put(b"after\n")
    writer.close()
    both = (tmp_path / "log.1").read_bytes() + path.read_bytes()
    assert both == b"before\nafter\n"
    assert path.read_bytes().endswith(b"after\n")


def test_a_reader_that_hangs_costs_lines_and_not_the_loop() -> None:
    """Beyond the bound lines are dropped and counted; what was taken is written when the reader comes back."""
    read, write = os.pipe()
    writer = LineWriter(write, max_waiting_bytes=1 << 20)
    line = b"x" * 1023 + b"\n"
    for _ in range(3000):
        writer.put(line)
    assert writer.dropped_lines >= 3000 - 1024 - 64 - 1  # the bound, what fits the pipe, and one in the thread's hand
    taken = (3000 - writer.dropped_lines) * len(line)
    seen = 0
    while seen < taken:
        seen += len(os.read(read, 1 << 16))
    writer.close()
    assert seen == taken
    os.close(write)
    os.close(read)


def test_a_target_that_is_gone_drops_lines() -> None:
    """A closed pipe is no error of ours."""
    read, write = os.pipe()
    os.close(read)
    writer = LineWriter(write)
    writer.put(b"a\nb\n", 2)
    writer.close()
    assert writer.dropped_lines == 2
    os.close(write)


def test_two_that_write_to_one_pipe_take_turns(tmp_path: Path) -> None:
    """A full pipe takes a long write in pieces; under the lock no line of one stands inside a line of the other."""
    read, write = os.pipe()
    writers = [LineWriter(write, lock=tmp_path / "turn") for _ in range(2)]
    lines = [letter * 50_000 + b"\n" for letter in (b"a", b"b")]
    for _ in range(40):
        for writer, line in zip(writers, lines, strict=True):
            writer.put(line)
    seen = b""
    while len(seen) < 80 * 50_001:
        seen += os.read(read, 1 << 16)
    assert sorted(seen.splitlines(keepends=True)) == sorted(lines * 40)
    for writer in writers:
        writer.close()
    os.close(write)
    os.close(read)


def test_a_file_that_cannot_be_opened_is_reported_at_once(tmp_path: Path) -> None:
    """At the start, not at the first line."""
    with pytest.raises(OSError, match="No such file"):
        LineWriter(tmp_path / "nowhere" / "log")


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """No file of this process grows beyond a size: a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def until_handled(writer: LineWriter) -> None:
    """Wait until all that was put has been written or dropped."""
    while writer.is_busy:
        os.sched_yield()


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_full_disk_leaves_no_half_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], *, is_shared: bool) -> None:
    """Lines are whole or not there, those that are not are counted, and both ends of it are reported once."""
    path, room = tmp_path / "usage", 1 << 20
    path.write_bytes(b"x" * (room - 36) + b"\n")
    writer = LineWriter(path, lock=tmp_path / "turn" if is_shared else None)
    with files_at_most(room):
        writer.put(b'{"number": 1}\n{"number": 2}\n{"number": 3}\n', 3)
        writer.put(b'{"number": 4444}\n')
        until_handled(writer)
    assert path.read_bytes()[room - 35 :] == b'{"number": 1}\n{"number": 2}\n'
    assert writer.dropped_lines == 2
    writer.put(b'{"number": 5}\n')
    writer.close()
    assert path.read_bytes()[room - 35 :] == b'{"number": 1}\n{"number": 2}\n{"number": 5}\n'
    reported = capfd.readouterr().err.splitlines()
    assert len(reported) == 2
    assert "log lines cannot be written" in reported[0]
    assert "File too large" in reported[0]
    assert "written again" in reported[1]


def test_after_half_a_line_that_stays_the_next_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes nothing back: the half line is ended before the next one."""
    read, write = os.pipe()
    writer, real, script = LineWriter(write), os.write, ["half", "full"]

    def scripted(fd: int, data: bytes | memoryview) -> int:
        if fd != write or not script:
            return real(fd, data)
        if script.pop(0) == "half":
            return real(fd, data[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gateway.runtime.line_writer.os.write", scripted)
    writer.put(b"1234567\n")
    until_handled(writer)
    assert writer.dropped_lines == 1
    writer.put(b"next\n")
    writer.close()
    assert os.read(read, 100) == b"1234\nnext\n"
    os.close(write)
    os.close(read)
