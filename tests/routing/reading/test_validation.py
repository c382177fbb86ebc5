"""What is wrong with a body is said so that the client can mend it: the field by its path, in JSON's words."""

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import read_request
from routing.reading.validation import MAX_DIGITS, SMALL, long_integer, repeated_field
from routing.rejection import Reason, RequestRejected
from routing.request import Api


def rejection(body: bytes, api: Api = Api.CHAT) -> RequestRejected:
    with pytest.raises(RequestRejected) as rejected:
        read_request(api, body, request_id="req-1")
    return rejected.value


NO_JSON: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b" \n", "empty"),
    (b"{", "truncated"),
    (b'{"model": "m"', "truncated, it ends after byte 13"),
    (b"hello", "invalid character"),
    (b'{"model": "m"} {}', "trailing characters"),
    (b'{"model": "m",}', "trailing comma"),
    (b"{'model': 'm'}", "keys must be strings"),
    (b'{"temperature": NaN}', "invalid character"),
    (b'{"model": "a\nb"}', "invalid character"),
    (b'{"user": "\\q"}', "escape"),
    (b'{"model": "\xff"}', "UTF-8 (byte 11)"),
    (b'{"user": "\xc3"}', "UTF-8"),
    (b'{"user": "\xed\xa0\x80"}', "UTF-8"),
    (b'{"us\xffer": 1}', "UTF-8"),
    (b'\xef\xbb\xbf{"model": "m"}', "byte order mark"),
    ('{"model": "m"}'.encode("utf-16"), "UTF-16"),
    ('{"model": "m"}'.encode("utf-16-be"), "UTF-16"),
    ('{"model": "m"}'.encode("utf-32-le"), "UTF-16"),
    (b'{"model": "m", "user": "\\ud800"}', "\\ud800"),
    (b'{"model": "\\udfff"}', "\\ud800"),
    (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
    (b'{"tools": ' + b'[{"a":' * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("body", "words"), NO_JSON, ids=range(len(NO_JSON)))
def test_what_is_no_json_is_rejected(body: bytes, words: str) -> None:
    """Not JSON, not UTF-8, nested to death: a refusal that says which, whatever the API."""
    for api in Api:
        rejected = rejection(body, api)
        assert rejected.reason is Reason.BAD_JSON
        assert words in rejected.message
        assert rejected.param is None


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"messages": ' + b'[{"content":' * 100_000])
def test_depth_is_survived_where_types_are_checked_too(body: bytes) -> None:
    """Nested to death inside a field we read: refused as well, in whichever words."""
    assert rejection(body).message


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"3", b"true"])
def test_what_is_no_object_is_rejected(body: bytes) -> None:
    """A body that is JSON but no object."""
    rejected = rejection(body)
    assert rejected.reason is Reason.BAD_REQUEST
    assert rejected.param is None
    assert "must be a JSON object" in rejected.message


CHAT_PARTS = {"messages": [{"content": "a"}, {"content": [{"type": "text", "text": 3}]}]}

WRONG: list[tuple[Api, dict[str, Any], str, str]] = [
    (Api.CHAT, {"model": 3}, "model", "expected `string | null`, got `integer`"),
    (Api.CHAT, {"model": "m" * 257}, "model", "length <= 256"),
    (Api.CHAT, {"messages": "Hi"}, "messages", "expected `array | null`, got `string`"),
    (Api.CHAT, {"messages": ["Hi"]}, "messages[0]", "expected `object`, got `string`"),
    (Api.CHAT, {"messages": [{"content": 3}]}, "messages[0].content", "expected `string | array | null`"),
    (Api.CHAT, {"messages": [{"role": None}]}, "messages[0].role", "expected `string`, got `null`"),
    (Api.CHAT, CHAT_PARTS, "messages[1].content[0].text", "got `integer`"),
    (Api.CHAT, {"messages": [{"tool_calls": [{"function": []}]}]}, "messages[0].tool_calls[0].function", "array"),
    (Api.CHAT, {"stream": "yes"}, "stream", "expected `boolean | null`, got `string`"),
    (Api.CHAT, {"stream": 1}, "stream", "got `integer`"),
    (Api.CHAT, {"stream_options": True}, "stream_options", "got `boolean`"),
    (Api.CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "got `integer`"),
    (Api.CHAT, {"n": True}, "n", "expected `integer | null`, got `boolean`"),
    (Api.CHAT, {"n": 0}, "n", "expected `integer` >= 1"),
    (Api.CHAT, {"n": 16385}, "n", "expected `integer` <= 16384"),
    (Api.CHAT, {"n": 10**40}, "n", "16384"),
    (Api.CHAT, {"max_tokens": -1}, "max_tokens", ">= 1"),
    (Api.CHAT, {"max_tokens": 0}, "max_tokens", ">= 1"),
    (Api.CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", ">= 1"),
    (Api.RESPONSES, {"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
    (Api.MESSAGES, {"max_tokens": 0}, "max_tokens", ">= 1"),
    (Api.COMPLETIONS, {"max_tokens": 0}, "max_tokens", "0 is only valid for a completion with `echo`"),
    (Api.COMPLETIONS, {"max_tokens": 0, "echo": False}, "max_tokens", "`echo`"),
    (Api.CHAT, {"max_tokens": 2**31}, "max_tokens", "<= 2147483647"),
    (Api.CHAT, {"max_tokens": "10"}, "max_tokens", "got `string`"),
    (Api.CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens", "got `float`"),
    (Api.CHAT, {"session_id": 3}, "session_id", "got `integer`"),
    (Api.COMPLETIONS, {"prompt": [1, -1]}, "prompt[1]", ">= 0"),
    (Api.COMPLETIONS, {"prompt": [[1, 2**31]]}, "prompt[0][1]", "<= 2147483647"),
    (Api.COMPLETIONS, {"prompt": [True]}, "prompt[0]", "got `boolean`"),
    (Api.COMPLETIONS, {"prompt": 3}, "prompt", "got `integer`"),
    (Api.RESPONSES, {"input": 3}, "input", "got `integer`"),
    (Api.RESPONSES, {"input": [{"content": {}}]}, "input[0].content", "got `object`"),
    (Api.RESPONSES, {"instructions": []}, "instructions", "got `array`"),
    (Api.RESPONSES, {"previous_response_id": "x" * 257}, "previous_response_id", "256"),
    (Api.MESSAGES, {"system": 3}, "system", "got `integer`"),
    (
        Api.MESSAGES,
        {"messages": [{"content": [{"type": "tool_use", "name": 1}]}]},
        "messages[0].content[0].name",
        "int",
    ),
    (Api.EMBEDDINGS, {"input": {"a": 1}, "messages": 3}, "messages", "got `integer`"),
    (Api.RERANK, {"documents": 3}, "documents", "got `integer`"),
]


@pytest.mark.parametrize(("api", "fields", "param", "words"), WRONG)
def test_a_wrong_field_is_named(api: Api, fields: dict[str, Any], param: str, words: str) -> None:
    """The path of the field stands in the message and as `param`; Python's words for types do not."""
    rejected = rejection(json.dumps({"model": "m"} | fields).encode(), api)
    assert rejected.reason is Reason.BAD_REQUEST
    assert rejected.param == param
    assert words in rejected.message
    assert f"`{param}`" in rejected.message
    assert not re.search(r"\b(str|int|bool)\b", rejected.message)


@pytest.mark.parametrize(("api", "fields", "param", "words"), WRONG)
def test_a_wrong_field_of_a_large_body_is_named_alike(api: Api, fields: dict[str, Any], param: str, words: str) -> None:
    """Large bodies are decoded otherwise; the refusal is the same."""
    rejected = rejection(json.dumps({"model": "m"} | fields | {"user": "u" * SMALL}).encode(), api)
    assert (rejected.reason, rejected.param) == (Reason.BAD_REQUEST, param)
    assert words in rejected.message


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}])
@pytest.mark.parametrize("api", list(Api))
def test_a_missing_model_is_named(api: Api, body: dict[str, Any]) -> None:
    """With several models behind one address nobody else can know which is meant."""
    rejected = rejection(json.dumps(body).encode(), api)
    assert (rejected.reason, rejected.param) == (Reason.BAD_REQUEST, "model")
    assert "`model` is required" in rejected.message


def test_an_integer_of_a_thousand_digits_is_rejected() -> None:
    """Beyond what Python would convert, too."""
    assert rejection(b'{"model": "m", "n": ' + b"9" * 5000 + b"}").param == "n"


def test_no_rejection_repeats_what_was_reported() -> None:
    """Messages name places and types, never a prompt's text: refusals are logged."""
    for body in (b'{"model": "m", "messages": [{"content": {"secret": "secret"}}]}', b'{"model": "secret" "secret"}'):
        assert "secret" not in rejection(body).message


MESSAGES = '[{"role":"user","content":"Hi"}]'
LONG = json.dumps([{"role": "user", "content": "Tell me more. " * 2000}])


def rejected(body: str, api: Api = Api.CHAT) -> str | None:
    """Which field the refusal names, None where the body is read."""
    try:
        read_request(api, body.encode(), request_id="r")
    except RequestRejected as rejection:
        found = rejection
    else:
        return None
    assert found.reason is Reason.BAD_REQUEST
    assert "more than once" in found.message
    return found.param


@pytest.mark.parametrize("padding", ["", "u" * SMALL], ids=["small", "large"])
@pytest.mark.parametrize(
    ("api", "name", "values"),
    [
        (Api.CHAT, "model", ('"a"', '"b"')),
        (Api.CHAT, "stream", ("true", "false")),
        (Api.CHAT, "stream", ("null", "true")),
        (Api.CHAT, "n", ("1", "1")),
        (Api.CHAT, "max_tokens", ("null", "5")),
        (Api.CHAT, "max_completion_tokens", ("5", "null")),
        (Api.CHAT, "stream_options", ('{"include_usage":true}', "null")),
        (Api.CHAT, "session_id", ('"a"', '"b"')),
        (Api.COMPLETIONS, "max_tokens", ("5", "6")),
        (Api.RESPONSES, "max_output_tokens", ("5", "6")),
        (Api.RESPONSES, "previous_response_id", ('"a"', '"b"')),
        (Api.RESPONSES, "instructions", ('"a"', '"b"')),
        (Api.MESSAGES, "max_tokens", ("5", "6")),
        (Api.EMBEDDINGS, "model", ('"a"', '"b"')),
        (Api.TOKENIZE, "model", ('"a"', '"b"')),
    ],
)
def test_a_single_value_that_stands_twice_is_named(api: Api, name: str, values: tuple[str, str], padding: str) -> None:
    """Whatever the size of the body, and whichever of the two is null; spelled with escapes as well."""
    model = "" if name == "model" else '"model":"m",'
    first, last = values
    escaped = "".join(f"\\u{ord(char):04x}" for char in name)
    for other in (name, escaped):
        body = f'{{{model}"{name}":{first},"user":"{padding}","{other}":{last}}}'
        assert rejected(body, api) == name
        assert rejected(body.replace(":", " : ").replace(",", ",\n\t"), api) == name


@pytest.mark.parametrize("name", ["temperature", "tools", "messages", "x", ""])
def test_in_a_small_body_no_field_stands_twice(name: str) -> None:
    """Also one that is not read."""
    assert rejected(f'{{"model":"m","{name}":[],"{name}":[]}}') == name


@pytest.mark.parametrize(
    ("api", "name"), [(Api.CHAT, "messages"), (Api.MESSAGES, "messages"), (Api.RESPONSES, "input")]
)
def test_a_prompt_cannot_hide_behind_another(api: Api, name: str) -> None:
    """A parser that takes the first field would work on far more than was accounted for."""
    for first in (f'"{name}"', f'"{name[:-1]}\\u00{ord(name[-1]):02x}"'):
        assert rejected(f'{{"model":"m",{first}:{LONG},"{name}":{MESSAGES}}}', api) == name


def test_large_bodies_of_everyday_use_are_read() -> None:
    """Of which much is no prompt: pictures, tools whose parameters are named as our fields are, escaped texts."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    fields = {name: {"type": "string", "description": "d" * 1000} for name in ("model", "messages", "stream", "n")}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": fields}}}]
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": [picture, {"type": "text", "text": '"model" \u00e9 "messages"'}]}],
        "tools": tools,
        "metadata": {"model": "x", "messages": "y" * 20_000},
    }
    assert rejected(json.dumps(body)) is None
    assert rejected(json.dumps(body, indent=2)) is None
    assert rejected(json.dumps(body | {"messages": [], "metadata": {}})) is None


names = st.sampled_from(["model", "stream", "n", "user", "messages", "x"])
VALUES = {"model": '"m"', "stream": "true", "n": "2", "user": '"u"', "messages": MESSAGES, "x": '{"n":1,"n":2}'}


@given(st.lists(names, max_size=7), st.sampled_from(["", " ", "\n  "]), st.sampled_from(["", " "]))
def test_a_small_body_is_rejected_exactly_where_a_field_repeats(listed: list[str], after: str, before: str) -> None:
    """However it is spaced, and whatever stands further in."""
    listed = ["model", *listed]
    body = "{" + f",{after}".join(f'"{name}"{before}:{after}{VALUES[name]}' for name in listed) + "}"
    again = [name for at, name in enumerate(listed) if name in listed[:at]]
    assert rejected(body) == (again[0] if again else None)


def test_what_python_cannot_parse_has_no_name() -> None:
    """Deeper than its stack, or no JSON at all: it is refused for that elsewhere."""
    assert repeated_field(b'{"a":' + b"[" * 100_000) is None
    assert repeated_field(b'{"a":1,"a":2}') == "a"
    assert repeated_field(b'{"a":' + b"9" * 5000 + b',"b":1}') is None


@pytest.mark.parametrize("where", ["{}", "[1, {}]", '{{"a": {{"b": [{}]}}}}', "-{}"])
@pytest.mark.parametrize("name", ["seed", "top_k", "metadata", "unheard_of"])
def test_the_field_is_named(name: str, where: str) -> None:
    """At any depth, in fields that are read and in others; one digit less goes on."""
    for digits, is_refused in ((MAX_DIGITS, False), (MAX_DIGITS + 1, True), (100_000, True)):
        body = f'{{"model": "m", "user": "{"7" * 9999}", "{name}": {where.format("9" * digits)}}}'.encode()
        if not is_refused:
            assert read_request(Api.CHAT, body, request_id="r").body == body
            continue
        with pytest.raises(RequestRejected) as rejected:
            read_request(Api.CHAT, body, request_id="r")
        assert (rejected.value.reason, rejected.value.param) == (Reason.BAD_REQUEST, name)
        assert f"more than {MAX_DIGITS} digits" in rejected.value.message


def test_the_bound_is_pythons() -> None:
    """As engines have it unless they were told otherwise."""
    assert sys.int_info.default_max_str_digits == MAX_DIGITS


@given(st.integers(0, 9000), st.integers(1, 9000), st.sampled_from(["text", "integer", "fraction"]))
def test_only_integers_count_wherever_they_stand(before: int, digits: int, kind: str) -> None:
    """Digits in a text or behind a point are as many as anyone likes."""
    number = "8" * digits
    value = {"text": f'"{number}"', "integer": number, "fraction": f"1.{number}"}[kind]
    body = f'{{"pad": "{"x" * before}", "n": {value}}}'.encode()
    json.loads(body, parse_int=str)
    assert long_integer(body) == ("n" if kind == "integer" and digits > MAX_DIGITS else None)
