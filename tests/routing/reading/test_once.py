"""A field that stands twice is refused by its name: parsers differ in which of the two counts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import read_request
from routing.reading.once import SMALL, repeated
from routing.rejection import Reason, Refused
from routing.request import Api

MESSAGES = '[{"role":"user","content":"Hi"}]'
LONG = json.dumps([{"role": "user", "content": "Tell me more. " * 2000}])


def refused(body: str, api: Api = Api.CHAT) -> str | None:
    """Which field the refusal names, None where the body is read."""
    try:
        read_request(api, body.encode(), request_id="r")
    except Refused as refusal:
        found = refusal
    else:
        return None
    assert found.reason is Reason.BAD_REQUEST
    assert "stands twice" in found.message
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
        assert refused(body, api) == name
        assert refused(body.replace(":", " : ").replace(",", ",\n\t"), api) == name


@pytest.mark.parametrize("name", ["temperature", "tools", "messages", "x", ""])
def test_in_a_small_body_no_field_stands_twice(name: str) -> None:
    """Also one that is not read."""
    assert refused(f'{{"model":"m","{name}":[],"{name}":[]}}') == name


@pytest.mark.parametrize(
    ("api", "name"), [(Api.CHAT, "messages"), (Api.MESSAGES, "messages"), (Api.RESPONSES, "input")]
)
def test_a_prompt_cannot_hide_behind_another(api: Api, name: str) -> None:
    """A parser that takes the first field would work on far more than was accounted for."""
    for first in (f'"{name}"', f'"{name[:-1]}\\u00{ord(name[-1]):02x}"'):
        assert refused(f'{{"model":"m",{first}:{LONG},"{name}":{MESSAGES}}}', api) == name


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
    assert refused(json.dumps(body)) is None
    assert refused(json.dumps(body, indent=2)) is None
    assert refused(json.dumps(body | {"messages": [], "metadata": {}})) is None


names = st.sampled_from(["model", "stream", "n", "user", "messages", "x"])
VALUES = {"model": '"m"', "stream": "true", "n": "2", "user": '"u"', "messages": MESSAGES, "x": '{"n":1,"n":2}'}


@given(st.lists(names, max_size=7), st.sampled_from(["", " ", "\n  "]), st.sampled_from(["", " "]))
def test_a_small_body_is_refused_exactly_where_a_field_repeats(listed: list[str], after: str, before: str) -> None:
    """However it is spaced, and whatever stands further in."""
    listed = ["model", *listed]
    body = "{" + f",{after}".join(f'"{name}"{before}:{after}{VALUES[name]}' for name in listed) + "}"
    again = [name for at, name in enumerate(listed) if name in listed[:at]]
    assert refused(body) == (again[0] if again else None)


def test_what_python_cannot_parse_has_no_name() -> None:
    """Deeper than its stack, or no JSON at all: it is refused for that elsewhere."""
    assert repeated(b'{"a":' + b"[" * 100_000) is None
    assert repeated(b'{"a":1,"a":2}') == "a"
    assert repeated(b'{"a":' + b"9" * 5000 + b',"b":1}') is None
