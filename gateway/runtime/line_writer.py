"""Writes lines to a file or standard output in a separate thread, so that a blocked reader never blocks the loop.

The queue is bounded; beyond it lines are dropped and counted. Processes that write to the same target take turns by a
lock, so that lines never interleave. A line that could be written only in part, because the disk is full, is removed
again. The first failure is reported on standard error, and so is the recovery. Independent of the content of lines.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from gateway.runtime.events import EVENTS, format_timestamp

MAX_BUFFERED_BYTES = 8 << 20
"""About 20,000 lines: a minute of a busy gateway while its log collector hangs."""

STDOUT = 1
STDERR = 2


class LineWriter:
    """Appends to one target. `put` never waits and may be called from any thread."""

    def __init__(
        self, target: Path | int, *, max_waiting_bytes: int = MAX_BUFFERED_BYTES, lock: Path | None = None
    ) -> None:
        """`lock`: the lock file of all processes that write to the target."""
        self.dropped_lines = 0
        self._target = target
        self._max_waiting_bytes = max_waiting_bytes
        self._queue: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._lock = Lock()
        self._waiting_bytes = 0
        self._reopen = False
        self._failing = ""
        """Why the last lines could not be written; empty if they were."""
        self._has_half_line = False
        """Whether the target ends in a partial line that could not be removed."""
        self._fd = self._open()
        self._lock_fd = None if lock is None else os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._thread = Thread(target=self._run, name=f"lines {target}", daemon=True)
        self._thread.start()

    def put(self, lines: bytes, count: int = 1) -> None:
        """Queue `count` whole lines, or drop them all."""
        with self._lock:
            if self._waiting_bytes + len(lines) > self._max_waiting_bytes:
                self.dropped_lines += count
                return
            self._waiting_bytes += len(lines)
        self._queue.put((lines, count))

    @property
    def is_busy(self) -> bool:
        """Return whether lines are queued."""
        return self._waiting_bytes > 0

    def reopen(self) -> None:
        """Reopen the file before the next line, after log rotation."""
        self._reopen = True

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the queued lines until the timeout, and stop."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _open(self) -> int:
        if isinstance(self._target, int):
            return self._target
        return os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            lines, count = item
            try:
                self._renew()
                with _turn(self._lock_fd):
                    is_complete = self._append(lines)
            except OSError as error:
                is_complete = 0
                self._report(str(error.strerror or error))
            else:
                if is_complete == len(lines):
                    self._report("")
            with self._lock:
                if is_complete < len(lines):
                    self.dropped_lines += min(count, lines.count(b"\n", is_complete))
                self._waiting_bytes -= len(lines)
        if not isinstance(self._target, int):
            os.close(self._fd)
        if self._lock_fd is not None:
            os.close(self._lock_fd)

    def _append(self, lines: bytes) -> int:
        """Write whole lines, as many as fit. Returns the number of bytes written."""
        if self._has_half_line:
            _write_all(self._fd, b"\n")
            self._has_half_line = False
        held = os.fstat(self._fd)
        size = held.st_size if stat.S_ISREG(held.st_mode) else None
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self._report(str(error.strerror or error))
            written = len(lines) - len(rest)
            is_complete = lines.rfind(b"\n", 0, written) + 1
            if is_complete < written:
                self._take_back(size, written, written - is_complete)
            return is_complete
        return len(lines)

    def _take_back(self, size: int | None, written: int, half: int) -> None:
        """Remove a partial line from the end of a file; if that fails, the next line starts on a new line."""
        try:
            if size is not None and os.fstat(self._fd).st_size == size + written:
                os.ftruncate(self._fd, size + written - half)
                os.lseek(self._fd, 0, os.SEEK_END)
                return
        except OSError:
            pass
        self._has_half_line = True

    def _report(self, failing: str) -> None:
        """Report on standard error when writing starts to fail, and when it recovers."""
        if failing == self._failing or bool(failing) == bool(self._failing):
            return
        self._failing = failing
        level, event = ("error", "log_write_failed") if failing else ("info", "log_write_recovered")
        line_record: dict[str, object] = {
            "timestamp": format_timestamp(time.time()),
            "level": level,
            "event": event,
            "message": EVENTS[event],
            "target": str(self._target),
        }
        line_record |= {"error": failing} if failing else {"dropped_lines": self.dropped_lines}
        with suppress(OSError):
            os.write(STDERR, json.dumps(line_record).encode() + b"\n")

    def _renew(self) -> None:
        if not self._reopen:
            return
        self._reopen = False
        if isinstance(self._target, int):
            return
        fresh = self._open()  # before the old one is closed: where it cannot be opened, lines go on into the old file
        os.close(self._fd)
        self._fd = fresh


@contextmanager
def _turn(lock_fd: int | None) -> Iterator[None]:
    """Hold the lock: a full pipe splits long writes, and those of other processes would interleave.

    The kernel releases the lock of a process that dies.
    """
    if lock_fd is None:
        yield
        return
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock_fd, fcntl.LOCK_UN)


def _write_all(fd: int, lines: bytes) -> None:
    rest = memoryview(lines)
    while rest:
        rest = rest[os.write(fd, rest) :]
