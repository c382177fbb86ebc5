"""Usage, finish reason and id, from answers and events as vLLM 0.32 was seen to write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import AnswerFacts, answer_bytes, read_facts, read_usage, read_whole
from routing.request import Api, Usage
from tests.routing.reading.wire import Json

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


TOLD: list[tuple[Api, Json, AnswerFacts]] = [
    (
        Api.CHAT,
        {
            "id": "chatcmpl-X",
            "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "stop_reason": None}],
            "usage": CHAT_USAGE,
        },
        AnswerFacts(Usage(42, 3, 32), "stop", "chatcmpl-X"),
    ),
    (
        Api.CHAT,
        {"id": "chatcmpl-X", "choices": [], "usage": CHAT_USAGE},
        AnswerFacts(Usage(42, 3, 32), None, "chatcmpl-X"),
    ),
    (Api.CHAT, {"id": "c", "choices": [], "usage": SILENT}, AnswerFacts(Usage(15, 2, None), None, "c")),
    (
        Api.CHAT,
        {"id": "c", "choices": [], "usage": SILENT | {"prompt_tokens_details": None}},
        AnswerFacts(Usage(15, 2, None), None, "c"),
    ),
    (
        Api.CHAT,
        {"id": "c", "choices": [{"index": 0, "delta": {"content": " of"}, "finish_reason": "length"}]},
        AnswerFacts(None, "length", "c"),
    ),
    (
        Api.COMPLETIONS,
        {"id": "cmpl-X", "choices": [{"index": 1, "text": ""}, {"index": 0, "text": "", "finish_reason": "stop"}]},
        AnswerFacts(None, "stop", "cmpl-X"),
    ),
    (
        Api.RESPONSES,
        response_event("response.completed", "incomplete", "max_output_tokens", RESPONSES_USAGE),
        AnswerFacts(Usage(1532, 3, 0), "max_output_tokens", "resp_X"),
    ),
    (
        Api.RESPONSES,
        response_event("response.completed", "completed", None, RESPONSES_USAGE)["response"],
        AnswerFacts(Usage(1532, 3, 0), "completed", "resp_X"),
    ),
    (Api.RESPONSES, response_event("response.created", "in_progress"), AnswerFacts(None, None, "resp_X")),
    (Api.RESPONSES, {"type": "response.output_text.delta", "delta": "text", "item_id": "m"}, AnswerFacts()),
    (
        Api.MESSAGES,
        {
            "id": "chatcmpl-X",
            "type": "message",
            "content": [{"type": "text", "text": "a"}],
            "stop_reason": "end_turn",
            "usage": ANTHROPIC_USAGE,
        },
        AnswerFacts(Usage(1596, 3, 64), "end_turn", "chatcmpl-X"),
    ),
    (
        Api.MESSAGES,
        {"type": "message_start", "message": {"id": "chatcmpl-X", "usage": {"input_tokens": 1532, "output_tokens": 0}}},
        AnswerFacts(Usage(1532, 0, None), None, "chatcmpl-X"),
    ),
    (
        Api.MESSAGES,
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": ANTHROPIC_USAGE},
        AnswerFacts(Usage(1596, 3, 64), "max_tokens", None),
    ),
    (Api.MESSAGES, {"usage": {"input_tokens": 454, "output_tokens": 1}}, AnswerFacts(Usage(454, 1, None))),
    (
        Api.EMBEDDINGS,
        {"id": "embd-X", "data": [], "usage": SILENT | {"completion_tokens": 0}},
        AnswerFacts(Usage(15, 0, None), None, "embd-X"),
    ),
    (
        Api.RERANK,
        {"id": "score-X", "usage": {"prompt_tokens": 3, "total_tokens": 3}},
        AnswerFacts(Usage(3), None, "score-X"),
    ),
]


@pytest.mark.parametrize(("api", "told", "facts"), TOLD)
def test_what_is_told_is_read(api: Api, told: Json, facts: AnswerFacts) -> None:
    """Each shape of each API, whole or as an event, with and without cached tokens told."""
    raw = json.dumps(told).encode()
    assert read_facts(api, raw) == facts
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
def test_what_is_no_answer_tells_nothing(raw: bytes) -> None:
    """Errors, rubbish and absurd numbers are nothing, never an exception: a wrong count must not settle anything."""
    for api in Api:
        assert read_facts(api, raw) == AnswerFacts()


@given(st.sampled_from(list(Api)), st.binary(max_size=100))
def test_facts_of_any_bytes_are_survived(api: Api, raw: bytes) -> None:
    """Whatever a pod sends, reading it raises nothing."""
    assert isinstance(read_facts(api, raw), AnswerFacts)


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
def test_one_parse_tells_what_two_tell(api: Api, answer: object) -> None:
    """Facts and generated bytes, of answers as the API has them and of others."""
    told = json.dumps(answer).encode()
    assert read_whole(api, told) == (read_facts(api, told), answer_bytes(api, told, stream=False))


def test_what_is_no_json_tells_nothing() -> None:
    """As with the parts: no fault, no facts."""
    facts, generated = read_whole(Api.CHAT, b'{"choices": [')
    assert (facts.usage, facts.finish_reason, generated) == (None, None, b"")
