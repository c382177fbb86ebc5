"""Resume a stream whose pod was lost: what is left of it is requested from another pod, and spliced on.

What may be resumed, how the rest is requested and how events are spliced is decided in `gateway/resume/`, purely.
Each event of a continuation is read and written anew, which costs more than to pass it on: few streams are ever cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import msgspec
from msgspec.structs import replace

from cascade.logprobs import Trim
from gateway.http.response_writer import Reply
from gateway.pipeline.attempt import Bar, Leg, LegEnd, Prefilled
from gateway.relay.pod_errors import PodError
from gateway.relay.recorder import Kept
from gateway.relay.relay import EventStream, Placed, Relay, RelayOptions
from gateway.relay.sse import Scanner
from gateway.relay.unary import Whole, ask_whole
from gateway.relay.upstream_connection import Answer, PodHead
from gateway.relay.upstream_pool import Pool
from gateway.resume.continuation import Rest, rest_of
from gateway.resume.delivered import Said, read_said
from gateway.resume.splice import UNLIKE, Differs, Stitch, stitched
from gateway.resume.token_recovery import Recalled, recalled_from
from routing.reading import with_fields
from routing.request import Request

EVENT_HELD_BYTES = 4 << 20
"""Bytes held of an event that has not ended: it is read, not passed on, and the first may list all prompt tokens."""

CHAT_PATH, TOKENIZE_PATH = "/v1/chat/completions", "/tokenize"

BAD_REQUEST = 400

BARRED_BY = {LegEnd.UNWILLING: Bar.REFUSED, LegEnd.DIFFERENT: Bar.DIFFERS}
"""Ends of a continuation after which no further pod is tried: it would end the same."""

WriteRequest = Callable[[str, bytes, str], list[bytes]]
"""Head and body of a request to the pod, of its path, its body and a suffix of its id."""


def continuation_after(relay: Relay, body: bytes) -> Rest | Bar:
    """Return what is left of the stream that this relay has begun, or why it cannot be resumed.

    `body` is what the lost pod was sent; empty where it was not kept.
    """
    try:
        delivered = delivered_by(relay)
    except UNLIKE:
        return Bar.PROMPT
    if not body or delivered is None:
        return Bar.TOO_LONG
    return rest_of(body, delivered, sequences=relay.placement.request.sequences)


def delivered_by(relay: Relay) -> Said | None:
    """Return what the client has been sent of a stream; None where not all of that was recorded."""
    scanner = relay.scanner
    if not relay.is_stream or not relay.recorder.is_whole or (scanner is not None and scanner.is_inside_event):
        return None
    return read_said(relay.api, relay.recorder.joined(), relay.events, withholds_usage=relay.withholds_usage)


def still_cut(leg: Leg, request: Request) -> Leg:
    """The result of an attempt after which the stream still lacks its rest, which `request` asks for."""
    barred = BARRED_BY.get(leg.end)
    if barred is not None:
        return replace(leg, begun=True, barred=barred)
    return replace(leg, begun=True, rest=request)


def with_prompt_ids(rest: Rest, fields: bytes) -> bytes:
    """Return `kv_transfer_params` with the prompt as token ids, where the continuation has one. `fields` are its
    others, as a JSON object or empty.
    """
    ids = rest.asking.prompt_ids
    if not ids:
        return fields
    prompt = b'{"prompt_token_ids":%b}' % msgspec.json.encode(ids)
    return with_fields(prompt, fields.strip()[1:-1]) if len(fields.strip()) > 2 else prompt


async def recover_tokens(pool: Pool, url: str, rest: Rest, write: WriteRequest, by_s: float) -> Rest | Leg:
    """Have a pod tell the token ids that a continuation needs, where it needs them; any pod of the model can.

    Returns the continuation by its ids, or the attempt as it failed. Raises only `asyncio.CancelledError`. The first
    call's prefill is not in vain: the continuation begins with the same prompt.
    """
    recall = rest.asking.recall
    if recall is None:
        return rest
    prompt = await ask_whole(pool, url, write(CHAT_PATH, recall.prompt, "p"), by_s)
    if not prompt.is_answer:
        return _failed(prompt)
    words = await ask_whole(pool, url, write(TOKENIZE_PATH, recall.words, "w"), by_s)
    if not words.is_answer:
        return _failed(words)
    recalled: Recalled | None = recalled_from(recall, prompt.body, words.body)
    if recalled is None:
        return Leg(LegEnd.UNWILLING, detail="The pod does not tell thoughts in tokens that are known.")
    return rest.recalled(recalled)


def unprepared(failed: Leg) -> Prefilled:
    """Return a failed token recovery as the end of a prefill attempt that was never sent.

    A pod that rejects the recovery has answered.
    """
    if failed.end is LegEnd.UNWILLING:
        return Prefilled(LegEnd.ANSWERED, failed.status or BAD_REQUEST, detail=failed.detail)
    return Prefilled(failed.end, failed.status, detail=failed.detail)


def _failed(whole: Whole) -> Leg:
    end = LegEnd.UNWILLING if whole.end is LegEnd.ANSWERED else whole.end
    return Leg(end, whole.status, detail=whole.detail)


class ResumedRelay(Relay):
    """An attempt that continues a stream which another pod began."""

    def __init__(
        self,
        rest: Rest,
        trim: Trim | None,
        reply: Reply,
        placement: Placed,
        path: str,
        **options: Unpack[RelayOptions],
    ) -> None:
        """`trim` takes out what was requested on a judge's behalf."""
        super().__init__(reply, placement, path, **options)
        self._stitch = rest.stitch(withholds_usage=self.withholds_usage)
        self._trim = trim
        self.recorder.add(rest.said.told)
        self.events = rest.said.passed

    def _open_body(self, head: PodHead) -> Answer | None:
        if not self.is_stream:
            self.fail(LegEnd.MALFORMED, "The pod does not stream what it was to go on with.")
            return None
        self.scanner = Scanner(self._stitch.api, Kept(0), withholds_usage=False, held_bytes=EVENT_HELD_BYTES)
        return ResumedStream(self, head, self.scanner, self._stitch, self._trim)

    def tell(self, error: PodError) -> None:
        """End the attempt: the client has part of an answer, and no use for an error of its continuation."""
        self.status = error.status
        self.fail(LegEnd.UNWILLING, error.message)

    def leg(self) -> Leg:
        """Return the result of the attempt, with usage of the whole answer as the client is sent it."""
        leg, joint = super().leg(), self._stitch.joint
        leg = replace(leg, is_behind=joint.is_behind, repeated=joint.repeated)
        if leg.end is not LegEnd.ANSWERED or leg.status >= 400:
            return leg
        return replace(leg, usage=joint.usage, told=joint.whole, response_id=None)


class ResumedStream(EventStream):
    """Handles the events of a continuation. What the client is sent is recorded: one answer, also for a next pod."""

    __slots__ = ("_stitch", "_trim")

    def __init__(self, relay: Relay, head: PodHead, scanner: Scanner, stitch: Stitch, trim: Trim | None) -> None:
        super().__init__(relay, head, scanner)
        self._stitch = stitch
        self._trim = trim

    def flow(self, line: object) -> None:
        """Return None: no event goes on as it came."""

    def passes(self, events: bytes) -> None:
        """Send the client what these events add to what it has."""
        relay = self._relay
        if not relay.has_begun:
            relay.has_begun = True
            relay.placement.first_token(relay.loop.time())
        try:
            joined = stitched(self._stitch, self._trim.events(events) if self._trim is not None else events)
        except Differs:
            relay.disown(LegEnd.DIFFERENT, "Another pod, asked the same again, gave another answer.")
            return
        if joined is None:
            relay.disown(LegEnd.MALFORMED, "The pod's events are not what its API says.")
        elif joined:
            relay.recorder.add(joined)
            super().passes(joined)
