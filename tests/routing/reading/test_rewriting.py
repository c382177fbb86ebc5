"""The body for the pod: the client's own bytes, or the same JSON less what is not the client's, with usage asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import ParsedRequest, read_request
from routing.reading.rewriting import RESERVED_FIELDS, prefill_body, with_output_limit
from routing.rejection import RequestRejected
from routing.request import Api
from tests.routing.reading.wire import Json, texts

CHAT: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5}
STREAMED = CHAT | {"stream": True}


def read(body: Json | bytes, api: Api = Api.CHAT) -> ParsedRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(api, raw, request_id="req-1")


def test_a_harmless_body_goes_on_untouched() -> None:
    """Not a byte is changed, not even a copy is made."""
    raw = json.dumps(CHAT, indent=2).encode()
    reading = read(raw)
    assert reading.body is raw
    assert not reading.usage_added


@pytest.mark.parametrize(
    "name",
    [
        *("cache_salt", "priority", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "request_id"),
        "data_parallel_rank",
    ],
)
@pytest.mark.parametrize("value", ["x", 3, 0, None, {"do_remote_prefill": True}, [], ""])
@pytest.mark.parametrize("api", list(Api))
def test_what_is_not_the_clients_is_taken_out(name: str, value: object, api: Api) -> None:
    """Whatever its value, on every API; all else stays, in its order."""
    body = {"model": "m", name: value, "user": "u", "input": "Hi"}
    sent = json.loads(read(body, api).body)
    assert list(sent.items()) == [("model", "m"), ("user", "u"), ("input", "Hi")]


def test_no_spelling_slips_through() -> None:
    """Escaped names are the names they spell; the same word further in is none of ours."""
    raw = b'{"model":"m","kv_tr\\u0061nsfer_params":{"a":1},"priority":1,"metadata":{"priority":3}}'
    assert json.loads(read(raw).body) == {"model": "m", "metadata": {"priority": 3}}


def test_values_keep_their_bytes_when_a_field_goes() -> None:
    """Numbers are not rounded and texts not escaped anew: what is not looked at is copied."""
    raw = b'{"model":"m","priority":1,"seed":12345678901234567890123,"x":[1.50, 1e3],"t":"\\u00e9\xc3\xa9"}'
    assert read(raw).body == b'{"model":"m","seed":12345678901234567890123,"x":[1.50, 1e3],"t":"\\u00e9\xc3\xa9"}'


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
@pytest.mark.parametrize("space", ["", " ", "\n", "\r\n\t "])
def test_usage_is_requested_on_every_stream(api: Api, space: str) -> None:
    """Spliced in before the closing brace, whatever stands around the object; the rest of the bytes is untouched."""
    raw = (space + json.dumps(STREAMED) + space).encode()
    reading = read(raw, api)
    assert reading.usage_added
    assert reading.body.startswith(raw.rstrip()[:-1])
    assert json.loads(reading.body) == STREAMED | {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_usage": None}, {"include_usage": True}),
        ({"include_obfuscation": False}, {"include_obfuscation": False, "include_usage": True}),
        ({"continuous_usage_stats": True}, {"include_usage": True}),
    ],
)
def test_options_without_usage_get_it(options: Json | None, sent: Json) -> None:
    """The client's other options stay, but for one that took effect only with usage and would now show."""
    reading = read(STREAMED | {"stream_options": options})
    assert reading.usage_added
    assert json.loads(reading.body) == STREAMED | {"stream_options": sent}


def test_a_client_that_requests_usage_is_left_alone() -> None:
    """It gets what it asked for: the usage event is not withheld from it."""
    raw = json.dumps(STREAMED | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}).encode()
    reading = read(raw)
    assert reading.body is raw
    assert not reading.usage_added


def test_escaped_and_repeated_options_are_detected() -> None:
    """An escaped `stream_options` is not doubled by ours, and of two neither counts."""
    escaped = b'{"model":"m","stream":true,"stream\\u005foptions":{"include_usage":false}}'
    assert json.loads(read(escaped).body) == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    twice = b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"stream_options":null}'
    with pytest.raises(RequestRejected, match="`stream_options` occurs more than once"):
        read(twice)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, CHAT | {"stream": False}),
        (Api.CHAT, CHAT | {"stream": None}),
        (Api.CHAT, CHAT | {"stream_options": {"include_usage": True}}),
        (Api.RESPONSES, {"model": "m", "input": "Hi", "stream": True}),
        (Api.MESSAGES, CHAT | {"stream": True, "max_tokens": 3}),
        (Api.EMBEDDINGS, {"model": "m", "input": "Hi", "stream": True}),
    ],
)
def test_usage_is_not_requested_elsewhere(api: Api, body: Json) -> None:
    """Unstreamed answers tell it anyway, and so do the streams of responses and messages."""
    reading = read(body, api)
    assert json.loads(reading.body) == body
    assert not reading.usage_added


def test_usage_and_a_field_taken_out_at_once() -> None:
    """Both changes in one body."""
    reading = read(STREAMED | {"priority": 1})
    assert reading.usage_added
    assert json.loads(reading.body) == STREAMED | {"stream_options": {"include_usage": True}}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from([*RESERVED_FIELDS, "temperature", "user", "metadata", "\u00e9", "x"])


@given(st.lists(st.tuples(keys, values), max_size=6), st.booleans(), st.booleans(), st.sampled_from([None, 2]))
def test_any_body_stays_the_json_it_was(
    fields: list[tuple[str, Any]], stream: bool, escape: bool, indent: int | None
) -> None:
    """Whatever a body holds, the pod reads what the client wrote, with our two changes; repeated names are refused."""
    members = [("model", "m"), ("stream", stream), *fields]
    raw = b"{" + b", ".join(
        json.dumps(name, ensure_ascii=escape).encode() + b": " + json.dumps(value, indent=indent).encode()
        for name, value in members
    ) + b"}"  # fmt: skip
    expected = {name: value for name, value in json.loads(raw).items() if name not in RESERVED_FIELDS}
    if len(dict(members)) < len(members):
        with pytest.raises(RequestRejected, match="occurs more than once"):
            read(raw)
        return
    if stream:
        expected["stream_options"] = {"include_usage": True}
    assert json.loads(read(raw).body) == expected


@pytest.mark.parametrize(
    ("api", "stated", "reported"),
    [
        (Api.CHAT, {}, {"max_completion_tokens": 50}),
        (Api.CHAT, {"max_tokens": 40}, {"max_tokens": 40}),
        (Api.CHAT, {"max_tokens": 400}, {"max_tokens": 50}),
        (Api.CHAT, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": 50}),
        (
            Api.CHAT,
            {"max_tokens": 400, "max_completion_tokens": 20},
            {"max_tokens": 50, "max_completion_tokens": 20},
        ),
        (Api.COMPLETIONS, {}, {"max_tokens": 50}),
        (Api.RESPONSES, {"max_output_tokens": 51}, {"max_output_tokens": 50}),
        (Api.MESSAGES, {"max_tokens": 1_000}, {"max_tokens": 50}),
        (Api.EMBEDDINGS, {}, {}),
    ],
)
def test_no_answer_may_have_more(api: Api, stated: dict[str, Any], reported: dict[str, Any]) -> None:
    """In the words of each API, whichever of them the client used."""
    rest = {"model": "m", "input": "max_tokenss", "deep": {"x": [1, None]}}
    assert json.loads(with_output_limit(api, json.dumps(rest | stated).encode(), 50)) == rest | reported


def test_a_name_in_escapes_or_in_the_text_is_no_way_round() -> None:
    r"""`\u006dax_tokens` is `max_tokens`; a prompt that names the field is none."""
    escaped = b'{"model":"m","\\u006dax_tokens":900}'
    assert json.loads(with_output_limit(Api.COMPLETIONS, escaped, 50)) == {"model": "m", "max_tokens": 50}
    quoted = json.dumps({"model": "m", "prompt": 'say "max_tokens": 9', "max_tokens": 900}).encode()
    assert json.loads(with_output_limit(Api.COMPLETIONS, quoted, 50))["max_tokens"] == 50


def test_what_is_within_the_bound_is_the_same_bytes() -> None:
    """A body that allows no more is not written anew."""
    body = b'{ "model" : "m" , "max_tokens" : 50 }'
    assert with_output_limit(Api.COMPLETIONS, body, 50) is body


PROMPT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "caf\u00e9"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "cache_salt": "tenant",
    "chat_template_kwargs": {"enable_thinking": False},
}
ANSWER: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
    "logprobs": True,
    "top_logprobs": 3,
    "stop": ["x"],
    "min_tokens": 9,
    "max_tokens": 50,
    "max_completion_tokens": 60,
    "response_format": {"type": "json_object"},
}


def sent(api: Api, body: dict[str, Any], fields: bytes = b"", **words: Any) -> dict[str, Any]:
    """The body as an engine reads it."""
    read: dict[str, Any] = json.loads(prefill_body(api, json.dumps(body).encode(), fields, **words))
    return read


def test_the_prompt_stays_as_it_is_and_the_answer_is_one_token() -> None:
    """Tools, template and salt shape the prompt; all else goes."""
    assert sent(Api.CHAT, PROMPT | ANSWER, b'{"do_remote_decode":true}') == PROMPT | {
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True},
    }


@pytest.mark.parametrize(
    ("api", "limit"),
    [(Api.COMPLETIONS, "max_tokens"), (Api.RESPONSES, "max_output_tokens"), (Api.MESSAGES, "max_tokens")],
)
def test_each_api_has_its_name_for_one_token(api: Api, limit: str) -> None:
    """And only that."""
    body = sent(api, {"model": "m", "max_tokens": 7, "max_output_tokens": 7, "max_completion_tokens": 7})
    assert {name: value for name, value in body.items() if name.startswith("max_")} == {limit: 1}
    assert body.get("store") is (False if api is Api.RESPONSES else None)


def test_a_first_token_that_would_stop_need_not_end_it() -> None:
    """Where the connector hands over nothing then."""
    assert sent(Api.CHAT, PROMPT, ends_by_length=True)["ignore_eos"] is True
    assert "ignore_eos" not in sent(Api.CHAT, PROMPT)


def test_what_a_client_says_of_transfers_goes() -> None:
    """Though it has been taken out before."""
    assert "kv_transfer_params" not in sent(Api.CHAT, PROMPT | {"kv_transfer_params": {"do_remote_prefill": True}})
