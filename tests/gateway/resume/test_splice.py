"""Any cut of any stream, at any byte, again and again: the client reads what it would have read of one pod."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.relay.recorder import ResponseRecorder
from gateway.relay.sse import EventScanner
from gateway.resume.continuation import Continuation, continuation_of
from gateway.resume.delivered import DeliveredOutput, read_delivered
from gateway.resume.splice import SplicedUsage, splice_events
from routing.request import Api
from tests.gateway.resume.client_view import read
from tests.gateway.resume.teller import PLAIN_STORY, STORIES, STORY, Event, Teller

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Tell."}], "stream": True}
COMPLETION = {"model": "tiny", "prompt": "Tell: ", "stream": True}
WITH_USAGE = {"stream_options": {"include_usage": True}}
MESSAGE = {"model": "tiny", "messages": [{"role": "user", "content": "Tell."}], "stream": True}
RESPONSE = {"model": "tiny", "input": "Tell.", "stream": True}

ASKED: dict[str, tuple[Api, Event]] = {
    "chat": (Api.CHAT, CHAT),
    "chat with usage": (Api.CHAT, CHAT | WITH_USAGE),
    "chat of some length": (Api.CHAT, CHAT | WITH_USAGE | {"max_tokens": 9, "max_completion_tokens": 9}),
    "completion": (Api.COMPLETIONS, COMPLETION | WITH_USAGE | {"max_tokens": 99, "logprobs": 1}),
    "completion of usual length": (Api.COMPLETIONS, COMPLETION),
    "completion by ids": (Api.COMPLETIONS, COMPLETION | WITH_USAGE | {"max_tokens": 12, "return_token_ids": True}),
    "message": (Api.MESSAGES, MESSAGE | {"max_tokens": 100}),
    "message of some length": (Api.MESSAGES, MESSAGE | {"max_tokens": 7}),
    "response": (Api.RESPONSES, RESPONSE),
    "response of some length": (Api.RESPONSES, RESPONSE | {"max_output_tokens": 5}),
    "response that nearly has its length": (Api.RESPONSES, RESPONSE | {"max_output_tokens": len(PLAIN_STORY) + 2}),
}


def undisturbed(api: Api, body: Event) -> bytes:
    return b"".join(Teller(STORIES.get(api, STORY), "first").answer(api, json.dumps(body).encode()))


def whole(events: bytes) -> bytes:
    """What of it a client is sent: whole events."""
    return events[: events.rfind(b"\n\n") + 2] if b"\n\n" in events else b""


def cut_and_joined(api: Api, body: Event, cuts: Sequence[int], reads: int) -> bytes:
    """What a client is sent where pods are lost after so many bytes, the next one each time by a later pod."""
    told, asked = undisturbed(api, body), json.dumps(body).encode()
    sent = EventScanner(api, ResponseRecorder(0), withholds_usage=False).take(told[: cuts[0] % len(told)])
    shown, passed = sent, sent.count(b"\n\n")
    for number, cut in enumerate([*cuts[1:], None]):
        said = read_delivered(api, shown, passed, withholds_usage=False)
        shown, passed = said.raw, said.event_count
        rest = continuation_of(asked, said, sequences=1)
        assert isinstance(rest, Continuation), rest
        stitch = rest.splicer(withholds_usage=False)
        theirs = b"".join(Teller(STORIES.get(api, STORY), f"pod-{number}").answer(stitch.api, rest.request.body))
        scanner = EventScanner(stitch.api, ResponseRecorder(0), withholds_usage=False)
        theirs = theirs if cut is None else theirs[: cut % len(theirs)]
        joined = b""
        for at in range(0, len(theirs), reads):
            part = splice_events(stitch, scanner.take(theirs[at : at + reads]))
            assert part is not None
            joined += part
        sent, shown, passed = sent + joined, shown + joined, passed + joined.count(b"\n\n")
    return sent


def has_started(api: Api, body: Event, cut: int) -> bool:
    """Whether the client was sent anything: else there is nothing to go on with."""
    told = undisturbed(api, body)
    least = {Api.MESSAGES: 1, Api.RESPONSES: 3}.get(api, 1)
    return told[: cut % len(told)].count(b"\n\n") >= least


@pytest.mark.parametrize("asked", ASKED)
def test_a_cut_at_any_byte_is_not_seen(asked: str) -> None:
    """Text, its end, usage and ids are those of one pod; nothing begins twice."""
    api, body = ASKED[asked]
    told = undisturbed(api, body)
    seen = set()
    for cut in range(1, len(told)):
        if not has_started(api, body, cut) or (reached := told[:cut].rfind(b"\n\n")) in seen:
            continue
        seen.add(reached)
        assert read(api, cut_and_joined(api, body, [cut], 1000)) == read(api, told), told[:cut][-200:]
    assert len(seen) > 5


@given(
    asked=st.sampled_from(sorted(ASKED)),
    cuts=st.lists(st.integers(0, 1 << 16), min_size=1, max_size=4),
    reads=st.integers(1, 400),
)
@example(asked="chat", cuts=[500, 0], reads=1)
def test_any_cuts_in_any_reads_are_not_seen(asked: str, cuts: list[int], reads: int) -> None:
    """However often, wherever, and however the bytes come."""
    api, body = ASKED[asked]
    if has_started(api, body, cuts[0]):
        assert read(api, cut_and_joined(api, body, cuts, reads)) == read(api, undisturbed(api, body))


def test_a_response_that_ends_with_half_a_character_has_its_length() -> None:
    """No event has told its last token; the pod that goes on would say more, so it had not ended by itself."""
    teller, body = Teller(("Once", " upon", "", "ï."), "pod"), RESPONSE | {"max_output_tokens": 3}
    events = teller.answer(Api.RESPONSES, json.dumps(body).encode())
    told = b"".join(events)
    for cut in range(6, len(events)):
        said = read_delivered(Api.RESPONSES, b"".join(events[:cut]), cut, withholds_usage=False)
        rest = continuation_of(json.dumps(body).encode(), said, sequences=1)
        assert isinstance(rest, Continuation)
        joined = splice_events(
            rest.splicer(withholds_usage=False), b"".join(teller.answer(Api.RESPONSES, rest.request.body))
        )
        assert joined is not None
        assert read(Api.RESPONSES, said.raw + joined).endings == read(Api.RESPONSES, told).endings


def gone_on_with(body: bytes, shown: bytes) -> tuple[DeliveredOutput, SplicedUsage, bytes]:
    """A message that was cut behind what is shown; all that its client has seen of it in the end."""
    said = read_delivered(Api.MESSAGES, shown, shown.count(b"\n\n"), withholds_usage=False)
    rest = continuation_of(body, said, sequences=1)
    assert isinstance(rest, Continuation)
    stitch = rest.splicer(withholds_usage=False)
    joined = splice_events(stitch, b"".join(Teller(PLAIN_STORY, "next").answer(stitch.api, rest.request.body)))
    assert joined is not None
    return said, stitch.joint, said.raw + joined


@pytest.mark.parametrize("limit", [100, 7])
def test_tokens_that_came_several_to_an_event_are_counted_by_the_prompt(limit: int) -> None:
    """A busy engine does that; a message has told at its beginning how long its prompt is, or 0 where it does not."""
    body = json.dumps(MESSAGE | {"max_tokens": limit}).encode()
    start, block, delta, *_ = Teller(PLAIN_STORY, "first").answer(Api.MESSAGES, body)
    begun = block + delta.replace(b'"Once"', b'"Once upon a"')
    # Events have told of two tokens less, so two more are asked for.
    [usage] = read(Api.MESSAGES, undisturbed(Api.MESSAGES, MESSAGE | {"max_tokens": limit + 2})).usage

    said, joint, told = gone_on_with(body, start + begun)
    assert said.tokens == 1
    assert read(Api.MESSAGES, told).usage == [usage]
    assert joint.whole is not None
    assert (joint.whole.prompt_tokens, joint.whole.completion_tokens) == (usage["input_tokens"], usage["output_tokens"])

    _, joint, _ = gone_on_with(body, start.replace(b'"input_tokens":7', b'"input_tokens":0') + begun)
    assert joint.whole is not None
    assert joint.whole.completion_tokens == usage["output_tokens"] - 2, "the prompt was never said"


def test_usage_that_the_client_did_not_ask_for_is_withheld() -> None:
    """It was asked of both pods on our behalf."""
    told = undisturbed(Api.CHAT, CHAT)
    asked: Any = json.dumps(CHAT | WITH_USAGE).encode()
    said = read_delivered(Api.CHAT, told[:700], whole(told[:700]).count(b"\n\n"), withholds_usage=True)
    rest = continuation_of(asked, said, sequences=1)
    assert isinstance(rest, Continuation)
    stitch = rest.splicer(withholds_usage=True)
    joined = splice_events(stitch, b"".join(Teller(STORY, "next").answer(Api.CHAT, rest.request.body)))
    assert joined is not None
    assert b"prompt_tokens" not in joined
    assert stitch.joint.usage is not None
    assert read(Api.CHAT, said.raw + joined).text == "".join(STORY)


def test_what_is_no_event_of_the_api_is_not_passed_on() -> None:
    """The pod's answer is damaged: another is to go on."""
    told = undisturbed(Api.CHAT, CHAT)
    rest = continuation_of(
        json.dumps(CHAT).encode(), read_delivered(Api.CHAT, told[:700], 3, withholds_usage=False), sequences=1
    )
    assert isinstance(rest, Continuation)
    for damaged in (b'data: {"choices": [{"del\n\n', b"data: []\n\n", b'data: {"x": 1}\n\n', b"data: \xff\n\n"):
        assert splice_events(rest.splicer(withholds_usage=False), damaged) is None
