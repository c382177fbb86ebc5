"""Fans the news of every worker of a host out to all others. Never reads what they say."""

from __future__ import annotations

from gateway.warmth.line import Line
from gateway.warmth.wire import Batch, Hello, Message, Missed, Restate, framed


class Hub:
    """Lines by the origin that spoke on them."""

    def __init__(self) -> None:
        self._lines: dict[Line, int] = {}

    def join(self, line: Line) -> None:
        """A worker has connected; who it is, it says next."""
        self._lines[line] = 0

    def take(self, line: Line, message: Message) -> None:
        """A worker has said something."""
        match message:
            case Hello(origin):
                self._lines[line] = origin
            case Batch():
                self.spread(message, but=line)
            case Missed(origin):
                for other, known in self._lines.items():
                    if known == origin:
                        other.send(Restate())

    def spread(self, batch: Batch, but: Line | None = None) -> None:
        """Give news to all workers but the one it came from."""
        frame = framed(batch)
        for line in self._lines:
            if line is not but:
                line.send_frame(frame)

    def leave(self, line: Line) -> None:
        """A worker is gone."""
        self._lines.pop(line, None)

    def close(self) -> None:
        """End all connections."""
        for line in list(self._lines):
            line.close()
