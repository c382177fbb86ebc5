"""The relay: a pod's answer on its way to the client, read by read. This is the path of every token.

    pod's socket -> Line.data_received -> llhttp -> Answer.take(payload) -> Reply.send -> client's socket
    pod's socket -> Flow.data_received -> client's socket

The second way is that of nearly every token (`flow.py`): a read that is one whole chunk is written as it came.

No task wakes up and nothing is queued on this path: the loop's call that brings bytes from the pod is the one that
writes them to the client's transport. The task that leads the request sleeps until the answer has ended.

An answer is one of three things, told apart by its head (`bodies.py`): a stream of events, a whole body, an error; the
first two are held back where they are judged (`held.py`). A client that does not read fast enough pauses its pod
(`Reply.source`), and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from gateway.cascades.judge import Judge
from gateway.cascades.logprobs import Trim
from gateway.http.response_writer import Reply
from gateway.pipeline.attempt import Leg, LegEnd
from gateway.relay.bodies import Answer, EventStream, PodHead, Refusal, WholeBody
from gateway.relay.holdback_stream import HeldBody, HeldStream
from gateway.relay.pod_errors import PodError, error_body
from gateway.relay.recorder import Kept, facts_of_answer, facts_of_stream
from gateway.relay.resumed import ResumedStream
from gateway.relay.sse import Scanner
from gateway.resume.continuation import Rest
from gateway.resume.delivered import Said, read_said
from routing.pairing.prefill_side import Handover
from routing.pods import Engine
from routing.reading import AnswerFacts, answer_bytes, read_whole
from routing.request import Api, Request, Usage

EVENT_STREAM = "text/event-stream"
PREFILL_ONLY = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.POOLING, Api.CLASSIFY})
"""Their answer is there when the prefill is done. A whole generated answer says nothing of its first token."""


class Placed(Protocol):
    """What the relay needs of a placement: where it is, and whom to tell of the first token."""

    @property
    def request(self) -> Request: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def handover(self) -> Handover | None: ...
    def first_token(self, now_s: float) -> None: ...


class Relay:
    """One attempt: one pod's answer to one request, from asking to its end."""

    def __init__(
        self,
        reply: Reply,
        placement: Placed,
        path: str,
        *,
        loop: asyncio.AbstractEventLoop,
        withholds_usage: bool,
        kept_bytes: int,
        begun: Callable[[], None],
        judge: Judge | None = None,
        rest: Rest | None = None,
        trim: Trim | None = None,
    ) -> None:
        """`judge` says of the whole answer, or of how it begins, whether the client gets it. `rest`: it goes on with
        what was said so far, and `trim` takes out what its client has not asked for.
        """
        self._loop = loop
        self._judge = judge
        self._begun = begun
        self.withholds_usage = withholds_usage
        self.reply = reply
        self.placement = placement
        self.api = placement.request.api
        self.path = path
        self.kept = Kept(kept_bytes)
        self.events = 0
        """That have gone to the client, of the whole answer."""
        self._scanner: Scanner | None = None
        self._stitch = rest.stitch(withholds_usage=withholds_usage) if rest is not None else None
        self._trim = trim
        if rest is not None:
            self.kept.add(rest.said.told)
            self.events = rest.said.passed
        self.has_begun = False
        self.is_stream = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self.end = LegEnd.ANSWERED
        self.status = 0
        self.detail = ""
        self.counted: Usage | None = None
        self.held_s = 0.0
        """How long a stream that was kept had been held back."""
        self.was_stale = False
        """The connection had been closed by the pod, perhaps before it was asked: to ask once more is fair."""

    def __repr__(self) -> str:
        return f"<Relay of {self.placement}, {self.end.value if self.ended.done() else 'under way'}>"

    def open_answer(self, head: PodHead) -> Answer | None:
        """What the head says is coming; None where it cannot be passed on."""
        self.status = head.status
        if head.status >= 400:
            return Refusal(self)
        if head.is_encoded or head.status >= 300:
            what = "compressed" if head.is_encoded else "redirected"
            self.fail(LegEnd.MALFORMED, f"The pod {what} its answer, unasked.")
            return None
        if head.content_type.startswith(EVENT_STREAM):
            self.is_stream = True
        elif self._stitch is not None:
            self.fail(LegEnd.MALFORMED, "The pod does not stream what it was to go on with.")
            return None
        return self._open_body(head)

    def _open_body(self, head: PodHead) -> Answer:
        judge = self._judge
        if self._stitch is not None and self.is_stream:
            resumed = ResumedStream(self, head, self._stitch, self._trim)
            self._scanner = resumed.scanner
            return resumed
        if not self.is_stream:
            return WholeBody(self, head) if judge is None else HeldBody(self, head, judge)
        scanner = self._scanner = Scanner(self.api, self.kept, withholds_usage=self.withholds_usage)
        return EventStream(self, head, scanner) if judge is None else HeldStream(self, head, scanner, judge)

    def begin(self, head: PodHead, first: bytes, *, is_stream: bool) -> None:
        """The client gets the head and the first bytes: from here on no other pod can begin an answer."""
        self.has_begun = True
        self._begun()
        if is_stream or self.api in PREFILL_ONLY:
            self.placement.first_token(self._loop.time())
        # A stream may lose an event or gain one: whatever the pod says, its length is not known.
        length = None if is_stream else head.length
        self.reply.begin(head.status, head.content_type, first, length=length, is_stream=is_stream)

    def tell(self, error: PodError) -> None:
        """The client gets a pod's no, in its own dialect."""
        self.status = error.status
        reply = self.reply
        if self._stitch is not None:
            self.fail(LegEnd.UNWILLING, error.message)
            return
        body = error_body(error, anthropic=reply.is_anthropic, request_id=reply.request_id)
        reply.answer(error.status, body)

    def goes_on(self) -> None:
        """The client gets more of an answer that another pod began."""
        if not self.has_begun:
            self.has_begun = True
            self.placement.first_token(self._loop.time())

    def passed(self, events: int) -> int:
        """So many have gone to the client the short way. Returns after how many more to say so again."""
        self.events += events
        return self.reply.passed(events)

    def has_told_all(self) -> bool:
        """End it as answered where the client has its last words, though the pod has not ended the body."""
        scanner = self._scanner
        if self.ended.done() or not self.has_begun or scanner is None or not scanner.has_said_all:
            return False
        self.answered()
        return True

    def answered(self) -> None:
        """The client has been sent all of the answer, or was told what is wrong with its request."""
        self._end(LegEnd.ANSWERED, "")

    def cut_short(self, last_words: bytes, detail: str, counted: Usage) -> None:
        """A limit ends the stream here: the client gets these last words, and the engine is told to stop."""
        self.counted = counted
        source = self.reply.source
        self.reply.send(last_words)
        self.reply.end()
        if source is not None:
            source.abort()
        self._end(LegEnd.ANSWERED, detail)

    def give_up(self, counted: Usage) -> None:
        """It was judged not good enough: the engine is told to stop, and the client never hears of it."""
        self.counted = counted
        if self.reply.source is not None:
            self.reply.source.abort()
        self._end(LegEnd.UNCONVINCING, "The answer was judged not good enough.")

    def now_s(self) -> float:
        return self._loop.time()

    def call_later(self, wait_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(wait_s, call)

    def fail(self, end: LegEnd, detail: str) -> None:
        """The attempt has come to nothing; not where all that was missing was the end of the body."""
        if not self.ended.done() and not self.reply.ended and self.has_told_all():
            self.reply.end()
            return
        self._end(end, detail)

    def disown(self, end: LegEnd, detail: str) -> None:
        """What comes is not for the client, even where the pod has said its last words: the engine is told to stop."""
        if self.reply.source is not None:
            self.reply.source.abort()
        self._end(end, detail)

    def leg(self) -> Leg:
        """What came of it. Reads the kept bytes, so not on the path of any token."""
        joint = self._stitch.joint if self._stitch is not None else None
        leg = Leg(
            self.end,
            self.status,
            begun=self.reply.begun,
            counted=self.counted,
            detail=self.detail,
            is_behind=joint is not None and joint.is_behind,
            repeated=joint.repeated if joint is not None else 0,
        )
        if self.end is not LegEnd.ANSWERED or self.status >= 400:
            return leg
        facts, answer = self._told()
        return replace(
            leg,
            begun=True,
            usage=facts.usage if joint is None else joint.usage,
            told=joint.whole if joint is not None else None,
            finish_reason=facts.finish_reason if self.counted is None else "length",
            response_id=facts.response_id if self.api is Api.RESPONSES and joint is None else None,
            answer=answer,
            held_s=self.held_s,
        )

    def said(self) -> Said | None:
        """What the client has been told of a stream; None where not all of that was kept."""
        scanner = self._scanner
        if not self.is_stream or not self.kept.is_whole or (scanner is not None and scanner.is_inside_event):
            return None
        return read_said(self.api, self.kept.joined(), self.events, withholds_usage=self.withholds_usage)

    def _told(self) -> tuple[AnswerFacts, bytes]:
        """What the answer tells, and the canonical bytes of what was generated, where all of it was kept."""
        api, kept = self.api, self.kept
        keeps_answer = api.generates and kept.is_whole
        if self.is_stream:
            facts = facts_of_stream(api, kept)
            return facts, answer_bytes(api, kept.joined(), stream=True) if keeps_answer else b""
        return read_whole(api, kept.joined()) if keeps_answer else (facts_of_answer(api, kept), b"")

    def _end(self, end: LegEnd, detail: str) -> None:
        if self.ended.done():
            return
        self.end, self.detail = end, detail or self.detail
        self.ended.set_result(None)
