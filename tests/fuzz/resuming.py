"""A target where pods meet: what one has said when it is lost, and what another says to go on with it."""

from __future__ import annotations

import json

from gateway.pipeline.attempt import ResumeBlocker
from gateway.resume.continuation import Continuation, continuation_of
from gateway.resume.delivered import read_delivered
from gateway.resume.splice import MALFORMED_EVENT, ReplayMismatch, splice_events
from gateway.resume.token_recovery import RecoveredTokens, read_recovered
from routing.request import GENERATING
from tests.fuzz.target import Target, split

SPEAKING = tuple(sorted(GENERATING))

BODY = json.dumps(
    {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "Tell."}],
        "prompt": "Tell: ",
        "input": "Tell.",
        "max_tokens": 9,
    }
).encode()

GREEDY = json.dumps(json.loads(BODY) | {"temperature": 0}).encode()
"""What is the same again is asked for once more where it cannot be gone on with."""

LOST = b"\x00"
"""Stands between what the one has said and what the other says: where there are thoughts, first of their tokens."""

PLAIN = RecoveredTokens(ids=(1, 2, 3), tokens=2, reasoning_tokens=1, end_id=9)
"""The tokens of thoughts whose pod tells none that can be read: what it says next is read all the same."""


def feed_resuming(raw: bytes) -> None:
    """Gone on with, or a word why not; what the other says is joined, or no event of its API."""
    steer, raw = split(raw)
    api, withholds = SPEAKING[steer % len(SPEAKING)], bool(steer & 4)
    body = GREEDY if steer & 8 else BODY
    kept, _, more = raw.partition(LOST)
    try:
        stated = read_delivered(api, kept, kept.count(b"\n\n"), withholds_usage=withholds)
    except MALFORMED_EVENT:  # As the carrier does.
        return
    rest = continuation_of(body, stated, sequences=1)
    if isinstance(rest, ResumeBlocker):
        return
    json.loads(rest.request.body)
    rest, more = recall(rest, more)
    try:
        joined = splice_events(rest.splicer(withholds_usage=withholds), more)
    except ReplayMismatch:
        assert rest.request.is_replay or rest.request.recovered
        return
    assert joined is None or not joined or joined.endswith(b"\n\n")


def recall(rest: Continuation, more: bytes) -> tuple[Continuation, bytes]:
    """The rest as its pod knows it in tokens, where it has to be asked for them, and what the pod says then."""
    if rest.request.recovery is None:
        return rest, more
    prompt, _, more = more.partition(LOST)
    words, _, more = more.partition(LOST)
    rest = rest.with_tokens(read_recovered(rest.request.recovery, prompt, words) or PLAIN)
    json.loads(rest.request.body)
    return rest, more


TARGETS = (
    Target(
        "resuming",
        feed_resuming,
        (
            b"data: ",
            b"\n\n",
            LOST,
            b'"delta":{"content":"',
            b'"delta":{"reasoning":"',
            b'"type":"thinking_delta","thinking":"',
            b'"prompt_token_ids":[1,2,3]',
            b'"token_ids":[',
            b'"tool_calls":[{"index":0,"function":{"name":"',
            b'"usage":{',
            b"[DONE]",
            b'"finish_reason":"stop"',
            b"\\u00",
        ),
    ),
)
