"""Answers that are judged before their client sees a byte of them: a stream behind its window, or a whole body.

Kept, everything goes on in one write, and a stream flows as any other from there; not kept, the pod is told at once by
closing its connection, and the attempt ends without having begun.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.cascades.answers.reader import hear_whole
from gateway.cascades.evidence import Evidence
from gateway.cascades.judge import HELD_BYTES, Judge, Moment, Verdict
from gateway.cascades.logprobs import Trim
from gateway.relay.bodies import EventStream, PodHead, Relaying, WholeBody
from gateway.relay.fast_path import Flow, Parsing
from gateway.relay.holdback_buffer import Window
from gateway.relay.sse import HELD_BYTES as EVENT_BYTES
from gateway.relay.sse import Scanner
from routing.reading import read_usage
from routing.request import Usage

EARLY = 0.9
"""Of a window's time: a loop with much to do comes to its timers late, and never early."""

EVENT_ENDS = (b"\n\n", b"\n\r\n")


class HeldStream(EventStream):
    """Events of a stream that is held back until it is judged."""

    __slots__ = ("_judge", "_partial", "_since_s", "_timer", "_trim", "_window")

    def __init__(self, relay: Relaying, head: PodHead, scanner: Scanner, judge: Judge) -> None:
        super().__init__(relay, head, scanner)
        self._judge = judge
        self._trim: Trim | None = judge.trim
        self._partial = b""
        """With a trim: the beginning of an event whose end has not been received."""
        self._window: Window | None = Window(relay.api, judge)
        self._timer: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        relay.ended.add_done_callback(self._stop)

    def flow(self, line: Parsing) -> Flow | None:
        """Return None for every stream that is trimmed: each of its events is written anew."""
        return None if self._window is not None or self._trim is not None else super().flow(line)

    def take(self, payload: bytes) -> None:
        """Pass whole events to the scanner where they are trimmed, so that the trimmed bytes are the ones kept."""
        if self._trim is None:
            super().take(payload)
            return
        events, self._partial = _whole_events(self._partial + payload)
        if events:
            super().take(events if self._window is not None else self._trim.events(events))

    def passes(self, events: bytes) -> None:
        window = self._window
        if window is None:
            super().passes(events)
            return
        # The engine has begun to answer, whatever becomes of it: the ledger and the costs are to know.
        self._relay.placement.first_token(self._relay.now_s())
        verdict = window.take(events)
        if verdict is not None:
            self._act(verdict)
        elif self._timer is None and window.has_answer:
            self._since_s = self._relay.now_s()
            if not self._judge.hold_back.whole:
                self._timer = self._relay.call_later(EARLY * self._judge.hold_back.max_added_s, self._time_is_up)

    def end(self) -> None:
        if self._partial:
            super().take(self._partial)
        if self._window is not None and self._scanner.is_complete and self._scanner.error is None:
            left = self._scanner.finish()
            verdict = self._window.take(left) if left else None
            self._act(self._window.judge(Moment.ENDED) if verdict is None else verdict)
            if self._relay.ended.done():
                return
        super().end()

    def _time_is_up(self) -> None:
        if self._window is not None and not self._relay.ended.done():
            self._act(self._window.judge(Moment.TIME))

    def _act(self, verdict: Verdict) -> None:
        window, self._window = self._window, None
        self._stop()
        if window is None:
            return
        if verdict is not Verdict.KEEP:
            self._relay.give_up(Usage(0, window.tokens))
            return
        if self._since_s:
            self._relay.held_s = self._relay.now_s() - self._since_s
        if held := window.held():
            self.passes(held if self._trim is None else self._trim.events(held))

    def _stop(self, _: object = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _whole_events(text: bytes) -> tuple[bytes, bytes]:
    """Split text behind its last whole event. Text is returned as a whole where the rest is too long to hold."""
    ends = [at + len(end) for end in EVENT_ENDS if (at := text.rfind(end)) >= 0]
    end = max(ends, default=0)
    return (text[:end], text[end:]) if len(text) - end <= EVENT_BYTES else (text, b"")


class HeldBody(WholeBody):
    """An answer in one piece, held until all of it is there. One that is too long to be held is never kept."""

    __slots__ = ("_bytes", "_judge", "_pieces")

    def __init__(self, relay: Relaying, head: PodHead, judge: Judge) -> None:
        super().__init__(relay, head)
        self._judge = judge
        self._pieces: list[bytes] = []
        self._bytes = 0

    def take(self, payload: bytes) -> None:
        if self._relay.ended.done():
            return
        self._pieces.append(payload)
        self._bytes += len(payload)
        if self._bytes > HELD_BYTES:
            self._judge.weigh(Evidence(), Moment.ROOM)
            self._relay.give_up(Usage(0))

    def end(self) -> None:
        api, body, self._pieces = self._relay.api, b"".join(self._pieces), []
        evidence = Evidence()
        hear_whole(api, body, evidence)
        if self._judge.weigh(evidence, Moment.ENDED) is not Verdict.KEEP:
            self._relay.give_up(read_usage(api, body) or Usage(0, evidence.tokens))
            return
        if self._judge.trim is not None:
            body = self._judge.trim.body(body)
        self._head = replace(self._head, length=len(body))
        if body:
            super().take(body)
        super().end()
