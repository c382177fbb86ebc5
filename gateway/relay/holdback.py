"""Responses that a cascade's judge accepts or rejects before the client sees a byte: a stream behind its hold-back
buffer, or a whole body.

Accepted, all that is held goes on in one write, and a stream passes as any other from there. Rejected, the pod's
connection is closed at once and the attempt ends without having begun: the next model is asked.
"""

from __future__ import annotations

import asyncio
from typing import Unpack

from msgspec.structs import replace

from cascade.calibration_file import AnswerVerdict
from cascade.judging import MAX_HELD_BYTES, AnswerEvidence, AnswerJudge, HoldbackSettings, JudgingTrigger
from cascade.logprobs import LogprobFilter
from gateway.cascades.answers import add_body, add_events
from gateway.http.response_writer import ResponseWriter
from gateway.pipeline.attempt import AttemptStatus
from gateway.relay.fast_path import ParsingConnection, PassthroughStream
from gateway.relay.relay import EventStream, PlacedAttempt, Relay, RelayOptions, UnaryBody
from gateway.relay.sse import MAX_HELD_BYTES as EVENT_BYTES
from gateway.relay.sse import EventScanner
from gateway.relay.upstream_connection import ResponseBodyHandler, ResponseHead
from routing.reading import read_usage
from routing.request import Api, Usage

TIMER_SHARE = 0.9
"""Share of the hold-back time after which the timer is set: a busy loop runs its timers late, and never early."""

EVENT_ENDS = (b"\n\n", b"\n\r\n")


class HoldbackRelay(Relay):
    """An attempt whose response is held back until `judge` has accepted it."""

    def __init__(
        self,
        judge: AnswerJudge,
        reply: ResponseWriter,
        placement: PlacedAttempt,
        path: str,
        **options: Unpack[RelayOptions],
    ) -> None:
        super().__init__(reply, placement, path, **options)
        self._judge = judge

    def _open_body(self, head: ResponseHead) -> ResponseBodyHandler:
        if not self.is_stream:
            return HoldbackBody(self, head, self._judge)
        self.scanner = EventScanner(self.api, self.recorder, withholds_usage=self.withholds_usage)
        return HoldbackStream(self, head, self.scanner, self._judge)


class HoldbackBuffer:
    """What of a stream has come and is not judged yet. Chunks are held as they came; knows no socket."""

    __slots__ = ("_api", "_bytes", "_evidence", "_hold_back", "_judge", "_pieces")

    def __init__(self, api: Api, judge: AnswerJudge) -> None:
        self._api = api
        self._judge = judge
        self._hold_back: HoldbackSettings = judge.hold_back
        self._evidence = AnswerEvidence()
        self._pieces: list[bytes] = []
        self._bytes = 0

    @property
    def has_answer(self) -> bool:
        """Whether a token that counts has come: the hold-back time runs from then on."""
        return self._counted > 0

    @property
    def tokens(self) -> int:
        """Tokens that the engine has generated so far, reasoning included."""
        return self._evidence.tokens + self._evidence.reasoning_tokens

    def take(self, events: bytes) -> AnswerVerdict | None:
        """Hold these whole events; return a verdict if it is time for one."""
        self._pieces.append(events)
        self._bytes += len(events)
        add_events(self._api, events, self._evidence)
        hold_back = self._hold_back
        if self._bytes > MAX_HELD_BYTES:
            return self.judge(JudgingTrigger.SIZE)
        if self._counted >= hold_back.tokens and not hold_back.complete_streams:
            return self.judge(JudgingTrigger.WINDOW)
        return None

    def judge(self, moment: JudgingTrigger) -> AnswerVerdict:
        """Have it judged now, by what has come."""
        return self._judge.judge(self._evidence, moment)

    def release(self) -> bytes:
        """Return all that is held, and hold nothing any more."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    @property
    def _counted(self) -> int:
        seen = self._evidence
        return seen.tokens or (seen.reasoning_tokens if self._hold_back.streams_reasoning else 0)


class HoldbackStream(EventStream):
    """Handles a stream of events that is held back until it is judged."""

    __slots__ = ("_judge", "_partial", "_since_s", "_timer", "_trim", "_window")

    def __init__(self, relay: Relay, head: ResponseHead, scanner: EventScanner, judge: AnswerJudge) -> None:
        super().__init__(relay, head, scanner)
        self._judge = judge
        self._trim: LogprobFilter | None = judge.logprob_filter
        self._partial = b""
        """With a filter: the beginning of an event whose end has not been received."""
        self._window: HoldbackBuffer | None = HoldbackBuffer(relay.api, judge)
        self._timer: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        relay.ended.add_done_callback(self._stop)

    def fast_path(self, line: ParsingConnection) -> PassthroughStream | None:
        """Return None for every stream that is filtered: each of its events is written anew."""
        return None if self._window is not None or self._trim is not None else super().fast_path(line)

    def take(self, payload: bytes) -> None:
        """Pass whole events to the scanner if they are filtered, so that the filtered bytes are the ones recorded."""
        if self._trim is None:
            super().take(payload)
            return
        events, self._partial = _complete_events(self._partial + payload)
        if events:
            super().take(events if self._window is not None else self._trim.filter_events(events))

    def pass_on(self, events: bytes) -> None:
        """Hold these events until the stream is judged; from then on send them."""
        window = self._window
        if window is None:
            super().pass_on(events)
            return
        # The engine has begun to answer, whatever becomes of it: the ledger and the costs are to know.
        loop = self._relay.loop
        self._relay.placement.first_token(loop.time())
        verdict = window.take(events)
        if verdict is not None:
            self._act(verdict)
        elif self._timer is None and window.has_answer:
            self._since_s = loop.time()
            if not self._judge.hold_back.complete_streams:
                self._timer = loop.call_later(TIMER_SHARE * self._judge.hold_back.max_added_s, self._time_is_up)

    def end(self) -> None:
        """Have a stream that is still held judged as a whole; then end it as any other."""
        if self._partial:
            super().take(self._partial)
        if self._window is not None and self._scanner.is_complete and self._scanner.error is None:
            left = self._scanner.finish()
            verdict = self._window.take(left) if left else None
            self._act(self._window.judge(JudgingTrigger.ENDED) if verdict is None else verdict)
            if self._relay.ended.done():
                return
        super().end()

    def _time_is_up(self) -> None:
        if self._window is not None and not self._relay.ended.done():
            self._act(self._window.judge(JudgingTrigger.TIME))

    def _act(self, verdict: AnswerVerdict) -> None:
        window, self._window = self._window, None
        self._stop()
        if window is None:
            return
        if verdict is not AnswerVerdict.KEEP:
            _reject(self._relay, Usage(0, window.tokens))
            return
        if self._since_s:
            self._relay.held_back_s = self._relay.loop.time() - self._since_s
        if held := window.release():
            self.pass_on(held if self._trim is None else self._trim.filter_events(held))

    def _stop(self, _: object = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HoldbackBody(UnaryBody):
    """Handles a whole body that is held until all of it has come. One too long to be held is always rejected."""

    __slots__ = ("_bytes", "_judge", "_pieces")

    def __init__(self, relay: Relay, head: ResponseHead, judge: AnswerJudge) -> None:
        super().__init__(relay, head)
        self._judge = judge
        self._pieces: list[bytes] = []
        self._bytes = 0

    def take(self, payload: bytes) -> None:
        """Hold these bytes; reject the body where it is too long."""
        if self._relay.ended.done():
            return
        self._pieces.append(payload)
        self._bytes += len(payload)
        if self._bytes > MAX_HELD_BYTES:
            self._judge.judge(AnswerEvidence(), JudgingTrigger.SIZE)
            _reject(self._relay, Usage(0))

    def end(self) -> None:
        """Have the body judged; send it where it is accepted."""
        api, body, self._pieces = self._relay.api, b"".join(self._pieces), []
        evidence = AnswerEvidence()
        add_body(api, body, evidence)
        if self._judge.judge(evidence, JudgingTrigger.ENDED) is not AnswerVerdict.KEEP:
            _reject(self._relay, read_usage(api, body) or Usage(0, evidence.tokens))
            return
        if self._judge.logprob_filter is not None:
            body = self._judge.logprob_filter.filter_body(body)
        self._head = replace(self._head, length=len(body))
        if body:
            super().take(body)
        super().end()


def _reject(relay: Relay, counted: Usage) -> None:
    """End the attempt and stop the engine: the client gets none of this response."""
    relay.metered_usage = counted
    relay.discard(AttemptStatus.ESCALATED, "The cascade check escalated this answer.")


def _complete_events(text: bytes) -> tuple[bytes, bytes]:
    """Split text behind its last whole event. Text is returned as a whole where the rest is too long to hold."""
    ends = [at + len(end) for end in EVENT_ENDS if (at := text.rfind(end)) >= 0]
    end = max(ends, default=0)
    return (text[:end], text[end:]) if len(text) - end <= EVENT_BYTES else (text, b"")
