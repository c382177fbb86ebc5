"""An engine's answer becomes exactly what the next turn's prompt contains, or nothing where that is not certain."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import ResponseFacts, read_complete, read_response_facts, read_usage, response_bytes
from routing.request import Api, Usage
from tests.routing.reading import wire
from tests.routing.reading.wire import Json, Said, request_of

FIRST = {"role": "user", "content": "What is warm?"}
AGAIN = {"role": "user", "content": "And now?"}

pieces = st.integers(1, 6)


@given(wire.sayings, pieces)
def test_a_chat_answer_is_what_the_next_turn_contains(stated: Said, pieces: int) -> None:
    """Streamed or whole, text or tool calls: the grown prompt is the prompt of the body that sends the answer back."""
    first = request_of(Api.CHAT, {"model": "m", "messages": [FIRST]}).prompt
    back = request_of(Api.CHAT, {"model": "m", "messages": [FIRST, wire.chat_message(stated)]}).prompt
    assert first.extended(response_bytes(Api.CHAT, wire.chat_answer(stated), stream=False)) == back
    if not stated.is_nothing:
        assert first.extended(response_bytes(Api.CHAT, wire.chat_stream(stated, pieces), stream=True)) == back


@given(wire.sayings, pieces)
def test_a_response_is_what_the_next_turn_contains(stated: Said, pieces: int) -> None:
    """The output items a client appends to its input hash as the grown prompt does."""
    first = request_of(Api.RESPONSES, {"model": "m", "input": "Hi"}).prompt
    items = [{"role": "user", "content": "Hi"}, *wire.response_items(stated)]
    back = request_of(Api.RESPONSES, {"model": "m", "input": items}).prompt
    assert first.extended(response_bytes(Api.RESPONSES, wire.response_answer(stated), stream=False)) == back
    assert first.extended(response_bytes(Api.RESPONSES, wire.response_stream(stated, pieces), stream=True)) == back


@given(wire.sayings.filter(lambda stated: not stated.is_nothing), pieces)
def test_an_anthropic_answer_is_what_the_next_turn_contains(stated: Said, pieces: int) -> None:
    """Content blocks sent back hash as the grown prompt does, tool inputs included however their JSON was spaced."""
    first = request_of(Api.MESSAGES, {"model": "m", "messages": [FIRST]}).prompt
    answered = {"role": "assistant", "content": wire.message_blocks(stated)}
    back = request_of(Api.MESSAGES, {"model": "m", "messages": [FIRST, answered]}).prompt
    assert first.extended(response_bytes(Api.MESSAGES, wire.message_answer(stated), stream=False)) == back
    assert first.extended(response_bytes(Api.MESSAGES, wire.message_stream(stated, pieces), stream=True)) == back


@given(wire.texts, wire.texts, pieces)
def test_a_completion_is_what_the_next_prompt_contains(prompt: str, text: str, pieces: int) -> None:
    """Prompt and completion sent back as one prompt hash as the grown prompt does."""
    first = request_of(Api.COMPLETIONS, {"model": "m", "prompt": "?" + prompt}).prompt
    back = request_of(Api.COMPLETIONS, {"model": "m", "prompt": "?" + prompt + text}).prompt
    assert first.extended(response_bytes(Api.COMPLETIONS, wire.completions_answer(text), stream=False)) == back
    assert first.extended(response_bytes(Api.COMPLETIONS, wire.completions_stream(text, pieces), stream=True)) == back


@given(wire.sayings.filter(lambda stated: not stated.is_nothing))
def test_one_answer_is_the_same_in_every_dialect(stated: Said) -> None:
    """A conversation stays warm when its client changes the API."""
    chat = response_bytes(Api.CHAT, wire.chat_answer(stated), stream=False)
    assert chat == response_bytes(Api.RESPONSES, wire.response_answer(stated), stream=False)
    assert chat == response_bytes(Api.MESSAGES, wire.message_answer(stated), stream=False)


def test_a_stream_with_other_spacing_is_read_too() -> None:
    """Nothing hangs on how a pod spaces its JSON, nor on carriage returns."""
    event = b'data: {"choices": [ {"index" : 0, "delta": {"content": "warm"}} ]}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert response_bytes(Api.CHAT, event, stream=True) == b"\xffassistant\xfewarm"


SAID = Said("It is warm.", (("look", {"where": "here"}),))

STREAMS: dict[Api, bytes] = {
    Api.CHAT: wire.chat_stream(SAID),
    Api.COMPLETIONS: wire.completions_stream(SAID.text),
    Api.RESPONSES: wire.response_stream(SAID),
    Api.MESSAGES: wire.message_stream(SAID),
}


@pytest.mark.parametrize("api", list(STREAMS))
def test_a_cut_stream_says_nothing(api: Api) -> None:
    """Wherever a stream is cut before its last event, no answer is believed."""
    stream = STREAMS[api]
    assert response_bytes(api, stream, stream=True)
    last_event = len(stream.rstrip()[: stream.rstrip().rfind(b"\n\n")])
    for end in range(last_event):
        assert response_bytes(api, stream[:end], stream=True) == b""


def with_error(stream: bytes) -> bytes:
    error = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
    return stream.replace(b"data: [DONE]", b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]")


THOUGHT = wire.chat_event({"reasoning": "Hm."})
OLD_THOUGHT = wire.chat_event({"reasoning_content": "Hm."})
SECOND = wire.chat_event({"content": "It was."}, index=1)
PLAIN = wire.chat_event({"content": "It is."})


@pytest.mark.parametrize(
    ("api", "stream"),
    [
        (Api.CHAT, with_error(STREAMS[Api.CHAT])),
        (Api.COMPLETIONS, with_error(STREAMS[Api.COMPLETIONS])),
        (Api.CHAT, wire.sse([THOUGHT, PLAIN, "[DONE]"])),
        (Api.CHAT, wire.sse([OLD_THOUGHT, PLAIN, "[DONE]"])),
        (Api.CHAT, wire.sse([PLAIN, SECOND, "[DONE]"])),
        (Api.CHAT, b"data: {broken\n\ndata: [DONE]\n\n"),
        (Api.CHAT, b"data: [DONE]\n\n"),
        (Api.CHAT, b""),
        (Api.RESPONSES, wire.sse([{"type": "response.failed", "response": wire.response(SAID, "failed")}])),
        (Api.RESPONSES, b""),
        (Api.MESSAGES, wire.sse([{"type": "error", "error": {}}, {"type": "message_stop"}])),
        (Api.MESSAGES, wire.sse([{"type": "message_stop"}])),
        (
            Api.MESSAGES,
            wire.sse(
                [
                    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
                    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
                    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Yes."}},
                    {"type": "message_stop"},
                ]
            ),
        ),
        (Api.EMBEDDINGS, wire.sse(["[DONE]"])),
    ],
)
def test_what_is_not_certain_says_nothing(api: Api, stream: bytes) -> None:
    """Several answers, reasoning, errors inside the stream: nothing is believed of these."""
    assert response_bytes(api, stream, stream=True) == b""


def chat_with(change: Callable[[dict[str, object]], None]) -> bytes:
    answer = json.loads(wire.chat_answer(SAID))
    change(answer)
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        (Api.CHAT, chat_with(lambda answer: answer.update(choices=[]))),
        (Api.CHAT, chat_with(lambda answer: answer.update(choices=[{"index": 0}, {"index": 1}]))),
        (Api.CHAT, chat_with(lambda answer: answer.update(choices=[{"message": {"content": "a", "reasoning": "b"}}]))),
        (Api.CHAT, b'{"error": {"message": "no"}}'),
        (Api.CHAT, b"not json"),
        (Api.CHAT, b'{"choices": ' + b"[" * 100_000),
        (Api.CHAT, b'{"choices": [{"message": {"content": "\xff"}}]}'),
        (Api.COMPLETIONS, b'{"choices": [{"text": "a"}, {"text": "b"}]}'),
        (Api.RESPONSES, json.dumps(wire.response(SAID, "in_progress")).encode()),
        (Api.RESPONSES, b'{"status": "completed", "output": [{"type": "reasoning"}, {"type": "message"}]}'),
        (Api.MESSAGES, b'{"type": "error", "error": {"type": "api_error"}}'),
        (Api.MESSAGES, b'{"type": "message", "content": [{"type": "thinking", "thinking": "Hm."}]}'),
        (Api.SCORE, b'{"data": []}'),
    ],
)
def test_a_unary_answer_that_is_not_certain_says_nothing(api: Api, answer: bytes) -> None:
    """The same for answers that are not streamed."""
    assert response_bytes(api, answer, stream=False) == b""


@given(st.sampled_from(list(Api)), st.binary(max_size=200) | st.sampled_from(list(STREAMS.values())), st.booleans())
def test_any_bytes_are_survived(api: Api, raw: bytes, stream: bool) -> None:
    """Whatever a pod sends, reading its answer raises nothing."""
    assert isinstance(response_bytes(api, raw, stream=stream), bytes)


CHAT_USAGE: Json = {
    "prompt_tokens": 42,
    "total_tokens": 45,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 32, "created_cache_tokens": 0, "multimodal_tokens": None},
    "completion_tokens_details": None,
}
RESPONSES_USAGE: Json = {
    "input_tokens": 1532,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1504, "input_tokens_per_turn": []},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1535,
}
ANTHROPIC_USAGE: Json = {
    "input_tokens": 28,
    "output_tokens": 3,
    "cache_creation_input_tokens": 1504,
    "cache_read_input_tokens": 64,
}
SILENT = {"prompt_tokens": 15, "total_tokens": 17, "completion_tokens": 2}


def response_event(kind: str, status: str, reason: str | None = None, usage: Json | None = None) -> Json:
    details = {"reason": reason} if reason else None
    answer = {"id": "resp_X", "status": status, "incomplete_details": details, "usage": usage}
    return {"response": answer, "sequence_number": 10, "type": kind}


TOLD: list[tuple[Api, Json, ResponseFacts]] = [
    (
        Api.CHAT,
        {
            "id": "chatcmpl-X",
            "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "stop_reason": None}],
            "usage": CHAT_USAGE,
        },
        ResponseFacts(Usage(42, 3, 32), "stop", "chatcmpl-X"),
    ),
    (
        Api.CHAT,
        {"id": "chatcmpl-X", "choices": [], "usage": CHAT_USAGE},
        ResponseFacts(Usage(42, 3, 32), None, "chatcmpl-X"),
    ),
    (Api.CHAT, {"id": "c", "choices": [], "usage": SILENT}, ResponseFacts(Usage(15, 2, None), None, "c")),
    (
        Api.CHAT,
        {"id": "c", "choices": [], "usage": SILENT | {"prompt_tokens_details": None}},
        ResponseFacts(Usage(15, 2, None), None, "c"),
    ),
    (
        Api.CHAT,
        {"id": "c", "choices": [{"index": 0, "delta": {"content": " of"}, "finish_reason": "length"}]},
        ResponseFacts(None, "length", "c"),
    ),
    (
        Api.COMPLETIONS,
        {"id": "cmpl-X", "choices": [{"index": 1, "text": ""}, {"index": 0, "text": "", "finish_reason": "stop"}]},
        ResponseFacts(None, "stop", "cmpl-X"),
    ),
    (
        Api.RESPONSES,
        response_event("response.completed", "incomplete", "max_output_tokens", RESPONSES_USAGE),
        ResponseFacts(Usage(1532, 3, 0), "max_output_tokens", "resp_X"),
    ),
    (
        Api.RESPONSES,
        response_event("response.completed", "completed", None, RESPONSES_USAGE)["response"],
        ResponseFacts(Usage(1532, 3, 0), "completed", "resp_X"),
    ),
    (Api.RESPONSES, response_event("response.created", "in_progress"), ResponseFacts(None, None, "resp_X")),
    (Api.RESPONSES, {"type": "response.output_text.delta", "delta": "text", "item_id": "m"}, ResponseFacts()),
    (
        Api.MESSAGES,
        {
            "id": "chatcmpl-X",
            "type": "message",
            "content": [{"type": "text", "text": "a"}],
            "stop_reason": "end_turn",
            "usage": ANTHROPIC_USAGE,
        },
        ResponseFacts(Usage(1596, 3, 64), "end_turn", "chatcmpl-X"),
    ),
    (
        Api.MESSAGES,
        {"type": "message_start", "message": {"id": "chatcmpl-X", "usage": {"input_tokens": 1532, "output_tokens": 0}}},
        ResponseFacts(Usage(1532, 0, None), None, "chatcmpl-X"),
    ),
    (
        Api.MESSAGES,
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": ANTHROPIC_USAGE},
        ResponseFacts(Usage(1596, 3, 64), "max_tokens", None),
    ),
    (Api.MESSAGES, {"usage": {"input_tokens": 454, "output_tokens": 1}}, ResponseFacts(Usage(454, 1, None))),
    (
        Api.EMBEDDINGS,
        {"id": "embd-X", "data": [], "usage": SILENT | {"completion_tokens": 0}},
        ResponseFacts(Usage(15, 0, None), None, "embd-X"),
    ),
    (
        Api.RERANK,
        {"id": "score-X", "usage": {"prompt_tokens": 3, "total_tokens": 3}},
        ResponseFacts(Usage(3), None, "score-X"),
    ),
]


@pytest.mark.parametrize(("api", "reported", "facts"), TOLD)
def test_what_is_reported_is_read(api: Api, reported: Json, facts: ResponseFacts) -> None:
    """Each shape of each API, whole or as an event, with and without cached tokens told."""
    raw = json.dumps(reported).encode()
    assert read_response_facts(api, raw) == facts
    assert read_usage(api, raw) == facts.usage


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[DONE]",
        b"[]",
        b"null",
        b'{"usage": 3}',
        b'{"usage": {"prompt_tokens": "many"}}',
        b'{"usage": {"prompt_tokens": -1}}',
        b'{"usage": {"prompt_tokens": 1, "completion_tokens": -1}}',
        b'{"usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}}}',
        b'{"usage": {}}',
        b'{"usage": null}',
        b'{"id": "\xff"}',
        b'{"detail": "Not Found"}',
        b'{"error": "Unauthorized"}',
        b'{"object": "error", "message": "no"}',
        b'{"response": ' * 5000,
    ],
)
def test_what_is_no_answer_reports_nothing(raw: bytes) -> None:
    """Errors, rubbish and absurd numbers are nothing, never an exception: a wrong count must not settle anything."""
    for api in Api:
        assert read_response_facts(api, raw) == ResponseFacts()


@given(st.sampled_from(list(Api)), st.binary(max_size=100))
def test_facts_of_any_bytes_are_survived(api: Api, raw: bytes) -> None:
    """Whatever a pod sends, reading it raises nothing."""
    assert isinstance(read_response_facts(api, raw), ResponseFacts)


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def chat(**message: object) -> dict[str, object]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "choices": [choice], "usage": USAGE}


ANSWERS: list[tuple[Api, object]] = [
    (Api.CHAT, chat(content="hello")),
    (Api.CHAT, chat(content=None, tool_calls=[CALL])),
    (Api.CHAT, chat(content="four", reasoning="two and two")),
    (Api.CHAT, {**chat(content="a"), "choices": chat(content="a")["choices"] * 2}),  # type: ignore[operator]
    (Api.CHAT, {"id": "chatcmpl-1", "choices": [], "usage": None}),
    (Api.CHAT, {"told": "something else"}),
    (Api.CHAT, {**chat(content="hello"), "usage": "none"}),
    (Api.CHAT, {**chat(content="hello"), "id": 7}),
    (Api.CHAT, {"choices": [{"message": "hello", "finish_reason": "length"}], "usage": USAGE}),
    (Api.CHAT, ["no object"]),
    (Api.COMPLETIONS, {"choices": [{"text": "hello", "finish_reason": "length"}], "usage": USAGE}),
    (Api.COMPLETIONS, {"choices": [{"text": None}], "usage": USAGE}),
    (Api.MESSAGES, {"type": "message", "content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": 3}}),
    (Api.EMBEDDINGS, {"id": "embd-1", "usage": {"prompt_tokens": 3}}),
]


@pytest.mark.parametrize(("api", "answer"), ANSWERS)
def test_one_parse_reports_what_two_report(api: Api, answer: object) -> None:
    """Facts and generated bytes, of answers as the API has them and of others."""
    reported = json.dumps(answer).encode()
    assert read_complete(api, reported) == (
        read_response_facts(api, reported),
        response_bytes(api, reported, stream=False),
    )


def test_what_is_no_json_reports_nothing() -> None:
    """As with the parts: no fault, no facts."""
    facts, generated = read_complete(Api.CHAT, b'{"choices": [')
    assert (facts.usage, facts.finish_reason, generated) == (None, None, b"")
