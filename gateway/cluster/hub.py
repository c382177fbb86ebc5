"""Fans the news of every worker of a host out to all others, and to other hosts where there is a bridge.

Remembers the latest of them, so that a worker that has just come can be told the past. Never reads the words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from gateway.cluster.ipc import Line
from gateway.cluster.ipc_messages import Batch, Hello, Message, Missed, Past, Recall, Restate, framed
from gateway.cluster.updates import UnreadableError, head_of, write_batch
from routing.replica_state import Stated

MOST_PAST_BYTES = 64 << 20
"""What a fleet of some dozen engines holds, at half a kilobyte a request."""

PIECE_BYTES = 128 << 10
"""Of the past, told in one go: a few milliseconds of whoever listens."""


class Hub:
    """Lines by the origin that spoke on them."""

    def __init__(self, *, most_past_bytes: int = MOST_PAST_BYTES) -> None:
        self.abroad: Callable[[bytes], None] = lambda _: None
        """Takes what a worker of this host says, for other hosts."""
        self.ask_abroad: Callable[[int], None] = lambda _: None
        """Has an origin on another host state what it has open."""
        self.is_whole = True
        """Whether the past is all here: a bridge that has not read it yet says no."""
        self.dropped = 0
        """Frames that workers now gone were too slow for."""
        self._lines: dict[Line, int] = {}
        self._numbers: dict[int, int] = {}
        """The last batch of every origin of this host."""
        self._past: deque[bytes] = deque()
        self._past_begins = 0
        self._past_bytes = 0
        self._most_past_bytes = most_past_bytes

    def __repr__(self) -> str:
        return f"<Hub of {len(self._lines)} workers, {len(self._past)} batches of the past>"

    @property
    def workers(self) -> int:
        return len(self._lines)

    @property
    def past_bytes(self) -> int:
        return self._past_bytes

    @property
    def dropped_frames(self) -> int:
        """What workers were too slow for, since the beginning."""
        return self.dropped + sum(line.dropped for line in self._lines)

    def join(self, line: Line) -> None:
        """A worker has connected; who it is, it says next."""
        self._lines[line] = 0

    def take(self, line: Line, message: Message) -> None:
        """A worker has said something."""
        match message:
            case Hello(origin):
                self._lines[line] = origin
                self._have_others_state(line)
            case Batch(payload):
                self._take_batch(line, payload)
            case Missed(origin):
                self._have_stated(origin)
            case Recall(start):
                line.send(self._tell_past(start))

    def take_abroad(self, payload: bytes) -> None:
        """News of another host. As long as it is its past that is read, workers ask for it; then they are told."""
        self._remember(payload)
        if self.is_whole:
            self._spread(payload, None)

    def have_all_state(self) -> None:
        """Somebody abroad has just come."""
        self._have_others_state(None)

    def states(self, origin: int) -> bool:
        """Have an origin state what it has open, if it is a worker of this host."""
        for line, known in self._lines.items():
            if known == origin:
                line.send(Restate())
                return True
        return False

    def leave(self, line: Line) -> None:
        """A worker is gone, and with it all that it had open: its requests were cut off."""
        origin = self._lines.pop(line, 0)
        self.dropped += line.dropped
        number = self._numbers.pop(origin, None)
        if number is not None and origin not in self._lines.values():
            farewell = write_batch(origin, number + 1, [Stated(())])
            self._spread(farewell, None)
            self.abroad(farewell)

    def close(self) -> None:
        """End all connections."""
        for line in list(self._lines):
            line.close()

    def _take_batch(self, line: Line, payload: bytes) -> None:
        try:
            origin, number = head_of(payload)
        except UnreadableError:
            return
        self._numbers[origin] = number
        self._remember(payload)
        self._spread(payload, line)
        self.abroad(payload)

    def _spread(self, payload: bytes, but: Line | None) -> None:
        frame = framed(Batch(payload))
        for line in self._lines:
            if line is not but:
                line.send_frame(frame)

    def _have_others_state(self, but: Line | None) -> None:
        for line in self._lines:
            if line is not but:
                line.send(Restate())

    def _have_stated(self, origin: int) -> None:
        if not self.states(origin):
            self.ask_abroad(origin)

    def _remember(self, payload: bytes) -> None:
        self._past.append(payload)
        self._past_bytes += len(payload)
        while self._past_bytes > self._most_past_bytes and self._past:
            self._past_bytes -= len(self._past.popleft())
            self._past_begins += 1

    def _tell_past(self, start: int) -> Past:
        first = max(0, start - self._past_begins)
        payloads: list[bytes] = []
        told = 0
        for payload in islice(self._past, first, None):
            payloads.append(payload)
            told += len(payload)
            if told >= PIECE_BYTES:
                break
        following = self._past_begins + first + len(payloads)
        ends = self._past_begins + len(self._past)
        return Past(following, payloads, has_more=following < ends or not self.is_whole)
