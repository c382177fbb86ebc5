"""A message that has thought, asked for as the chat that it is, by its tokens: what is asked, what its client reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.pipeline.attempt import ResumeBlocker
from gateway.resume.continuation import Continuation, continuation_of
from gateway.resume.continuation_request import ContinuationRequest, build_request
from gateway.resume.delivered import DeliveredOutput, Event, read_delivered
from gateway.resume.splice import ReplayMismatch, splice_events
from gateway.resume.token_recovery import RecoveredTokens
from routing.request import Api
from tests.gateway.resume.teller import named, plain
from tests.gateway.resume.test_replay import events_of, hear

ASKED: dict[str, Any] = {
    "model": "tiny",
    "stream": True,
    "messages": [{"role": "user", "content": "Tell."}],
    "temperature": 0.7,
    "max_tokens": 2000,
}

END = 91
"""The token that ends thoughts; every letter is a token of its own."""

START: Event = {"type": "message_start", "message": {"id": "first", "usage": {"input_tokens": 2, "output_tokens": 0}}}


def begin(index: int, kind: str) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, kind: ""}}


def more(index: int, kind: str, text: str) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", kind: text}}


def end(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


SIGNED: Event = {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "x"}}

THOUGHT = (START, begin(0, "thinking"), more(0, "thinking", "h"), more(0, "thinking", "m"))

SPOKEN = (*THOUGHT, SIGNED, end(0), begin(1, "text"), more(1, "text", "S"))


def stated(*events: Event) -> DeliveredOutput:
    return read_delivered(Api.MESSAGES, b"".join(map(named, events)), len(events), withholds_usage=False)


def requested(before: DeliveredOutput, **fields: Any) -> ContinuationRequest | ResumeBlocker:
    return build_request(Api.MESSAGES, json.dumps(ASKED | fields).encode(), before, 1)


def asking(before: DeliveredOutput, **fields: Any) -> ContinuationRequest:
    made = requested(before, **fields)
    assert isinstance(made, ContinuationRequest), made
    return made


def recalled(before: DeliveredOutput, **fields: Any) -> Continuation:
    ids = (7, 104, 109, END, 83) if before.text else (7, 104, 109)
    return Continuation(before, asking(before, **fields)).with_tokens(RecoveredTokens(ids, len(ids) - 1, 2, END))


def test_a_message_is_recovered_as_the_chat_that_it_is() -> None:
    """Its prompt in the words of chat; its thoughts and its text between the marks."""
    made = asking(stated(*SPOKEN), thinking={"type": "enabled", "budget_tokens": 1024}, stop_sequences=["END"])
    assert made.api is Api.CHAT
    assert made.recovery is not None
    prompt, words = json.loads(made.recovery.prompt), json.loads(made.recovery.tokenize)
    assert (prompt["messages"], prompt["max_completion_tokens"], prompt["stream"]) == (ASKED["messages"], 1, False)
    assert (prompt["thinking_token_budget"], prompt["return_token_ids"]) == (1024, True)
    assert words["prompt"] == "<think>hm</think>S"


def test_the_rest_is_requested_in_chat() -> None:
    """With what is left of its length by tokens, the same budget, and the ids that prove it."""
    rest = recalled(stated(*SPOKEN), thinking={"type": "enabled", "budget_tokens": 1024}, stop_sequences=["END"])
    body = json.loads(rest.request.body)
    assert rest.path == "/v1/chat/completions"
    assert rest.request.prompt_ids == (7, 104, 109, END, 83)
    assert (body["max_completion_tokens"], body["thinking_token_budget"], body["stop"]) == (1996, 1024, ["END"])
    assert (body["return_token_ids"], body["stream_options"]) == (True, {"include_usage": True})
    assert body["messages"] == ASKED["messages"]


def test_thoughts_before_this_answer_stay_in_its_prompt() -> None:
    """As vLLM puts them over; what was redacted nobody can read."""
    blocks = [{"type": "thinking", "thinking": "Hm, ", "signature": "1"}, {"type": "redacted_thinking", "data": "?"}]
    blocks += [{"type": "thinking", "thinking": "well.", "signature": "2"}, {"type": "text", "text": "So."}]
    turns = [*ASKED["messages"], {"role": "assistant", "content": blocks}, *ASKED["messages"]]
    body = json.loads(asking(stated(*THOUGHT), messages=turns).body)
    assert body["messages"][1] == {"role": "assistant", "reasoning": "Hm, well.", "content": "So."}


@pytest.mark.parametrize(
    ("fields", "chat"),
    [
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "json_schema", "schema": {"type": "object"}},
                }
            },
        ),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required", "parallel_tool_calls": True}),
        (
            {"tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False},
        ),
        ({"messages": [*ASKED["messages"], {"role": "assistant", "content": "So"}]}, {}),
        ({"vllm_xargs": {"x": 1}, "watermarking": False}, {"vllm_xargs": {"x": 1}, "watermarking": False}),
    ],
)
def test_what_begins_behind_the_thoughts_is_put_over(fields: Event, chat: Event) -> None:
    """Efforts, grammars, tools that must be called, and an answer that its client began, which vLLM ends."""
    tools = [{"name": "look", "input_schema": {"properties": {}}, "strict": True}]
    body = json.loads(asking(stated(*THOUGHT), tools=tools, **fields).body)
    assert {name: body.get(name) for name in chat} == chat
    function = body["tools"][0]["function"]
    assert (function["parameters"], function["strict"]) == ({"properties": {}, "type": "object"}, True)


@pytest.mark.parametrize(
    ("before", "fields", "bar"),
    [
        (
            (*THOUGHT, {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use"}}),
            {},
            ResumeBlocker.TOOL_CALL,
        ),
        ((START, begin(0, "redacted_thinking")), {}, ResumeBlocker.REASONING),
        (THOUGHT, {"thinking": {"type": "disabled"}}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (THOUGHT, {"messages": [{"role": "system", "content": "Tell."}]}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (
            THOUGHT,
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            ResumeBlocker.UNSUPPORTED_PROMPT,
        ),
        # vLLM gives it the second for an id.
        (
            THOUGHT,
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]},
            ResumeBlocker.UNSUPPORTED_PROMPT,
        ),
        (THOUGHT, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (SPOKEN, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, ResumeBlocker.STRUCTURED_OUTPUT),
        (
            SPOKEN,
            {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}},
            ResumeBlocker.STRUCTURED_OUTPUT,
        ),
    ],
)
def test_what_cannot_be_put_over_is_named(before: tuple[Event, ...], fields: Event, bar: ResumeBlocker) -> None:
    """Nothing is asked for that might be another prompt, or begin a grammar anew in the middle."""
    assert requested(stated(*before), **fields) is bar


def test_what_is_the_same_again_is_requested_again() -> None:
    """As a message: that is proven text by text."""
    made = asking(stated(*THOUGHT), temperature=0)
    assert (made.api, made.is_replay, made.recovery) == (Api.MESSAGES, True, None)


def chunk(delta: Event, ids: list[int] | None = None, **fields: Any) -> Event:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "stop_reason": None, "token_ids": ids}
    return {"id": "second", "choices": [choice | fields]}


def opening(rest: Continuation) -> Event:
    return chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [*rest.request.prompt_ids]}


def ending(reason: str, **fields: Any) -> tuple[Event, Event]:
    usage = {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}
    return chunk({}, [2], finish_reason=reason, **fields), {"choices": [], "usage": usage}


def joined(rest: Continuation, *events: Event) -> bytes:
    """All that a client is sent, with what it was told before."""
    sent = splice_events(rest.splicer(withholds_usage=False), b"".join(map(plain, (opening(rest), *events))))
    assert sent is not None
    return rest.delivered.raw + sent


def reported(rest: Continuation, *events: Event) -> list[Event]:
    return events_of(joined(rest, *events))[len(rest.delivered.events) :]


def test_thoughts_go_on_in_their_block_and_the_text_opens_its_own() -> None:
    """The end of the block that was open waits for what follows; thoughts are signed where they end, once."""
    rest = recalled(stated(*THOUGHT))
    thought, mark, text = chunk({"reasoning": "!"}, [33]), chunk({}, [END]), chunk({"content": "S"}, [83])
    assert reported(rest, thought, mark) == [more(0, "thinking", "!")]
    events = reported(rest, thought, mark, text, *ending("stop"))
    signed = {**SIGNED, "delta": {"type": "signature_delta", "signature": "first"}}
    why = {"stop_reason": "end_turn", "stop_sequence": None}
    assert events == [
        more(0, "thinking", "!"),
        signed,
        end(0),
        begin(1, "text"),
        more(1, "text", "S"),
        end(1),
        {"type": "message_delta", "delta": why, "usage": {"input_tokens": 2, "output_tokens": 5}},
    ]


def test_thoughts_and_text_of_one_event_are_two_blocks() -> None:
    """As an engine tells them that puts several tokens into one."""
    rest = recalled(stated(*THOUGHT))
    events = reported(rest, chunk({"reasoning": "!", "content": "S"}, [33, END, 83]))
    assert [event.get("index") for event in events] == [0, 0, 0, 1, 1]
    assert events[-1] == more(1, "text", "S")


def test_text_behind_thoughts_goes_on_in_its_block() -> None:
    """Nothing is opened twice."""
    assert reported(recalled(stated(*SPOKEN)), chunk({"content": "o"}, [111])) == [more(1, "text", "o")]


CALL = {"index": 0, "id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": '}}
REST_OF_CALL = {"index": 0, "function": {"arguments": "1}"}}


@pytest.mark.parametrize(
    ("deltas", "end", "why"),
    [
        ([CALL, REST_OF_CALL], {"reason": "tool_calls"}, "tool_use"),
        # A tool that must be called: its chat says that the model only stopped.
        ([CALL, REST_OF_CALL], {"reason": "stop"}, "tool_use"),
        ([CALL, REST_OF_CALL], {"reason": "stop", "stop_reason": "END"}, "tool_use"),
        ([CALL], {"reason": "stop", "stop_reason": "END"}, "stop_sequence"),
        ([CALL], {"reason": "length"}, "max_tokens"),
        ([], {"reason": "stop", "stop_reason": "END"}, "stop_sequence"),
        ([], {"reason": "stop", "stop_reason": 7}, "end_turn"),
    ],
)
def test_calls_stand_behind_the_thoughts(deltas: list[Event], end: Event, why: str) -> None:
    """In blocks of their own; why it ended is told as vLLM tells it of a message."""
    rest = recalled(stated(*THOUGHT))
    chunks = [chunk({"tool_calls": [delta]}, [END]) for delta in deltas]
    received = hear(Api.MESSAGES, joined(rest, *chunks, *ending(**end)))
    kinds = [
        (each[1], each[2]) for each in received.once if isinstance(each, tuple) and each[0] == "content_block_start"
    ]
    assert kinds == [(0, "thinking"), *([(1, "tool_use")] if deltas else [])]
    assert received.texts.get((1, "partial_json"), "") == "".join(delta["function"]["arguments"] for delta in deltas)
    (stop,) = [event for event in events_of(joined(rest, *chunks, *ending(**end))) if event["type"] == "message_delta"]
    assert stop["delta"] == {"stop_reason": why, "stop_sequence": "END" if why == "stop_sequence" else None}


def test_thoughts_that_have_all_their_tokens_are_ended_and_no_more() -> None:
    """Nobody hears the one token that tells of usage."""
    rest = recalled(stated(*THOUGHT), max_tokens=2)
    assert json.loads(rest.request.body)["max_completion_tokens"] == 1
    events = reported(rest, chunk({"reasoning": "!"}, [33]), *ending("length"))
    assert [event["type"] for event in events] == ["content_block_delta", "content_block_stop", "message_delta"]
    assert (events[0]["delta"]["type"], events[2]["delta"]["stop_reason"]) == ("signature_delta", "max_tokens")
    assert events[2]["usage"] == {"input_tokens": 2, "output_tokens": 2}


@pytest.mark.parametrize(
    ("before", "events"),
    [
        # Thoughts that go on are taken for text, or a text that goes on for thoughts.
        (THOUGHT, [chunk({"content": "o"}, [111])]),
        (SPOKEN, [chunk({"reasoning": "o"}, [111])]),
    ],
)
def test_a_pod_that_reads_something_else_is_ignored(before: tuple[Event, ...], events: list[Event]) -> None:
    """A parser that stands elsewhere than the answer does."""
    with pytest.raises(ReplayMismatch):
        joined(recalled(stated(*before)), *events)


def test_no_thought_stands_behind_a_text_that_was_reported() -> None:
    """Such a message was gone on with by its text: the event is none of its answer."""
    before = stated(START, begin(0, "text"), more(0, "text", "S"))
    stitch = Continuation(before, asking(before)).splicer(withholds_usage=False)
    assert splice_events(stitch, plain(chunk({"content": "o"}))) is not None
    assert splice_events(stitch, plain(chunk({"reasoning": "hm"}))) is None


@pytest.mark.parametrize("ids", [None, [7], [7, 104, 109, END]])
def test_a_pod_that_has_read_another_prompt_is_ignored(ids: list[int] | None) -> None:
    """Or tells none: it may have answered anew."""
    rest = recalled(stated(*THOUGHT))
    first = chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": ids}
    with pytest.raises(ReplayMismatch):
        splice_events(rest.splicer(withholds_usage=False), plain(first))


@pytest.mark.parametrize("before", [(START,), (START, begin(0, "thinking"))])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_message_that_has_sent_nothing_may_still_think(before: tuple[Event, ...], *, thinks: bool) -> None:
    """It is asked for from its beginning; a block that was opened for thoughts is closed where none come."""
    body = json.dumps(ASKED).encode()
    rest = continuation_of(body, stated(*before), sequences=1)
    assert isinstance(rest, Continuation)
    assert rest.request.recovery is None
    events = [*([chunk({"reasoning": "hm"})] if thinks else []), chunk({"content": "S"}), *ending("stop")]
    sent = splice_events(rest.splicer(withholds_usage=False), b"".join(map(plain, events)))
    assert sent is not None
    received = hear(Api.MESSAGES, rest.delivered.raw + sent)
    has_block = thinks or len(before) > 1
    assert received.texts == ({(0, "thinking"): "hm"} if thinks else {}) | {(int(has_block), "text"): "S"}
    kinds = [each[2] for each in received.once if isinstance(each, tuple) and each[0] == "content_block_start"]
    assert kinds == [*(["thinking"] if has_block else []), "text"]
