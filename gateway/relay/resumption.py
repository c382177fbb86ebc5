"""Resume a stream whose pod was lost: the rest is requested from another pod and spliced onto what was delivered.

What may be resumed, how the rest is requested and how events are spliced is decided in `gateway/resume/`, without I/O.
Each event of a continuation is parsed and written again, which costs more than relaying it; few streams are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import msgspec
from msgspec.structs import replace

from cascade.logprobs import LogprobFilter
from gateway.http.response_writer import ResponseWriter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus, PrefillResult, ResumeBlocker
from gateway.relay.pod_errors import UpstreamError
from gateway.relay.recorder import ResponseRecorder
from gateway.relay.relay import EventStream, PlacedAttempt, Relay, RelayOptions
from gateway.relay.sse import EventScanner
from gateway.relay.unary import UnaryResult, call_unary
from gateway.relay.upstream_connection import ResponseBodyHandler, ResponseHead
from gateway.relay.upstream_pool import UpstreamPool
from gateway.resume.continuation import Continuation, continuation_of
from gateway.resume.delivered import DeliveredOutput, read_delivered
from gateway.resume.splice import MALFORMED_EVENT, ReplayMismatch, StreamSplicer, splice_events
from gateway.resume.token_recovery import RecoveredTokens, read_recovered
from routing.pods import NO_GRANTS
from routing.reading import with_fields
from routing.request import Request

MAX_HELD_EVENT_BYTES = 4 << 20
"""Bytes held of an event that has not ended: it is read, not passed on, and the first may list all prompt tokens."""

CHAT_PATH, TOKENIZE_PATH = "/v1/chat/completions", "/tokenize"

BAD_REQUEST = 400

BLOCKER_BY_STATUS = {
    AttemptStatus.CONTINUATION_REJECTED: ResumeBlocker.UPSTREAM_REJECTED,
    AttemptStatus.REPLAY_MISMATCH: ResumeBlocker.REPLAY_MISMATCH,
}
"""Ends of a continuation after which no further pod is tried: it would end the same."""

WriteRequest = Callable[[str, bytes, str], list[bytes]]
"""Head and body of a request to the pod, of its path, its body and a suffix of its id."""


def continuation_after(relay: Relay, body: bytes) -> Continuation | ResumeBlocker:
    """Return what is left of the stream that this relay has begun, or why it cannot be resumed.

    `body` is what the lost pod was sent; empty where it was not kept.
    """
    try:
        delivered = delivered_by(relay)
    except MALFORMED_EVENT:
        return ResumeBlocker.UNSUPPORTED_PROMPT
    if not body or delivered is None:
        return ResumeBlocker.BUFFER_EXCEEDED
    return continuation_of(body, delivered, sequences=relay.placement.request.sequences)


def delivered_by(relay: Relay) -> DeliveredOutput | None:
    """Return what the client has been sent of a stream; None where not all of that was recorded."""
    scanner = relay.scanner
    if not relay.is_stream or not relay.recorder.is_whole or (scanner is not None and scanner.is_inside_event):
        return None
    return read_delivered(relay.api, relay.recorder.joined(), relay.events, withholds_usage=relay.withholds_usage)


def cut_result(attempt_result: AttemptResult, request: Request) -> AttemptResult:
    """The result of an attempt after which the stream still lacks its rest, which `request` asks for."""
    barred = BLOCKER_BY_STATUS.get(attempt_result.end)
    if barred is not None:
        return replace(attempt_result, started=True, resume_blocker=barred)
    if request.grants:  # No provider outside the fleet could continue it.
        request = replace(request, grants=NO_GRANTS)
    return replace(attempt_result, started=True, continuation=request)


def with_prompt_ids(rest: Continuation, fields: bytes) -> bytes:
    """Return `kv_transfer_params` with the prompt as token ids, where the continuation has one. `fields` are its
    others, as a JSON object or empty.
    """
    ids = rest.request.prompt_ids
    if not ids:
        return fields
    prompt = b'{"prompt_token_ids":%b}' % msgspec.json.encode(ids)
    return with_fields(prompt, fields.strip()[1:-1]) if len(fields.strip()) > 2 else prompt


async def recover_tokens(
    pool: UpstreamPool, url: str, rest: Continuation, write: WriteRequest, by_s: float
) -> Continuation | AttemptResult:
    """Have a pod tell the token ids that a continuation needs, where it needs them; any pod of the model can.

    Returns the continuation by its ids, or the attempt as it failed. Raises only `asyncio.CancelledError`. The first
    call's prefill is not in vain: the continuation begins with the same prompt.
    """
    recall = rest.request.recovery
    if recall is None:
        return rest
    prompt = await call_unary(pool, url, write(CHAT_PATH, recall.prompt, "p"), by_s)
    if not prompt.is_success:
        return _failed(prompt)
    words = await call_unary(pool, url, write(TOKENIZE_PATH, recall.tokenize, "w"), by_s)
    if not words.is_success:
        return _failed(words)
    recalled: RecoveredTokens | None = read_recovered(recall, prompt.body, words.body)
    if recalled is None:
        return AttemptResult(
            AttemptStatus.CONTINUATION_REJECTED, detail="The pod's reasoning tokens are not known to the gateway."
        )
    return rest.with_tokens(recalled)


def failed_prefill(failed: AttemptResult) -> PrefillResult:
    """Return a failed token recovery as the end of a prefill attempt that was never sent.

    A pod that rejects the recovery has answered.
    """
    if failed.end is AttemptStatus.CONTINUATION_REJECTED:
        return PrefillResult(AttemptStatus.OK, failed.status or BAD_REQUEST, detail=failed.detail)
    return PrefillResult(failed.end, failed.status, detail=failed.detail)


def _failed(whole: UnaryResult) -> AttemptResult:
    end = AttemptStatus.CONTINUATION_REJECTED if whole.end is AttemptStatus.OK else whole.end
    return AttemptResult(end, whole.status, detail=whole.detail)


class ResumedRelay(Relay):
    """An attempt that continues a stream which another pod began."""

    def __init__(
        self,
        rest: Continuation,
        trim: LogprobFilter | None,
        reply: ResponseWriter,
        placement: PlacedAttempt,
        path: str,
        **options: Unpack[RelayOptions],
    ) -> None:
        """`trim` takes out what was requested on a judge's behalf."""
        super().__init__(reply, placement, path, **options)
        self._stream_splicer = rest.splicer(withholds_usage=self.withholds_usage)
        self._trim = trim
        self.recorder.add(rest.delivered.raw)
        self.events = rest.delivered.event_count

    def _open_body(self, head: ResponseHead) -> ResponseBodyHandler | None:
        if not self.is_stream:
            self.fail(AttemptStatus.INVALID_RESPONSE, "The pod did not stream the continuation.")
            return None
        self.scanner = EventScanner(
            self._stream_splicer.api, ResponseRecorder(0), withholds_usage=False, held_bytes=MAX_HELD_EVENT_BYTES
        )
        return ResumedStream(self, head, self.scanner, self._stream_splicer, self._trim)

    def send_error(self, error: UpstreamError) -> None:
        """End the attempt: the client has part of an answer, and no use for an error of its continuation."""
        self.status = error.status
        self.fail(AttemptStatus.CONTINUATION_REJECTED, error.message)

    def result(self) -> AttemptResult:
        """Return the result of the attempt, with usage of the whole answer as the client is sent it."""
        attempt_result, joint = super().result(), self._stream_splicer.joint
        attempt_result = replace(attempt_result, is_behind=joint.is_behind, repeated=joint.repeated)
        if attempt_result.end is not AttemptStatus.OK or attempt_result.status >= 400:
            return attempt_result
        return replace(attempt_result, usage=joint.usage, client_usage=joint.whole, response_id=None)


class ResumedStream(EventStream):
    """Handles the events of a continuation. What the client is sent is recorded: one answer, also for a next pod."""

    __slots__ = ("_stream_splicer", "_trim")

    def __init__(
        self,
        relay: Relay,
        head: ResponseHead,
        scanner: EventScanner,
        stream_splicer: StreamSplicer,
        trim: LogprobFilter | None,
    ) -> None:
        super().__init__(relay, head, scanner)
        self._stream_splicer = stream_splicer
        self._trim = trim

    def fast_path(self, line: object) -> None:
        """Return None: no event goes on as it came."""

    def pass_on(self, events: bytes) -> None:
        """Send the client what these events add to what it has."""
        relay = self._relay
        if not relay.has_started:
            relay.has_started = True
            relay.placement.first_token(relay.loop.time())
        try:
            joined = splice_events(
                self._stream_splicer, self._trim.filter_events(events) if self._trim is not None else events
            )
        except ReplayMismatch:
            relay.discard(AttemptStatus.REPLAY_MISMATCH, "The replay on another pod produced a different response.")
            return
        if joined is None:
            relay.discard(AttemptStatus.INVALID_RESPONSE, "The pod's events do not follow its API.")
        elif joined:
            relay.recorder.add(joined)
            super().pass_on(joined)
