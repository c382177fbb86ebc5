"""Reading a body as a whole: what we read is what the engine reads, and nothing a client sends raises anything else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import Reading, read_request
from routing.reading.once import SMALL
from routing.rejection import Refused
from routing.request import Api
from tests.routing.reading.wire import texts

BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi \\u00e9 \xc3\xa9"}], "n": 2}'


def read(api: Api, body: bytes, session: str | None = None) -> Reading:
    return read_request(api, body, request_id="req-1", session=session)


def read_or_refused(api: Api, body: bytes) -> Reading | Refused:
    """What becomes of a body. Any other exception is a fault."""
    try:
        return read(api, body)
    except Refused as refused:
        return refused


def test_facts_are_read() -> None:
    """One body, all its facts."""
    request = read(Api.CHAT, BODY).request
    assert (request.id, request.api, request.model, request.stream, request.sequences) == (
        "req-1", Api.CHAT, "m", True, 2,
    )  # fmt: skip
    assert request.prompt.tail == "\xff".encode("latin-1") + b"user\xfe" + "Hi é é".encode()


def test_the_headers_session_comes_first() -> None:
    """A session named in a header outweighs the body's; an empty one does not count."""
    body = b'{"model": "m", "session_id": "body"}'
    assert read(Api.CHAT, body, "header").request.session == "header"
    assert read(Api.CHAT, body, "").request.session == "body"
    assert read(Api.CHAT, body).request.session == "body"


def test_long_session_names_are_kept_short() -> None:
    """Sessions are remembered by the hundred thousand: a megabyte of name is kept as its digest, still told apart."""
    long = "s" * 1_000_000
    sessions = [read(Api.CHAT, b'{"model": "m"}', session).request.session or "" for session in (long, long + "t")]
    in_body = read(Api.CHAT, json.dumps({"model": "m", "session_id": long}).encode()).request.session
    assert sessions[0] == in_body != sessions[1]
    assert max(map(len, sessions)) <= 64
    assert read(Api.CHAT, b'{"model": "m"}', "\udcff" * 300).request.session


# Names as clients may spell them: any character may be an escape.
def spelled(name: str, escapes: list[bool]) -> str:
    return "".join(f"\\u{ord(char):04X}" if escape else char for char, escape in zip(name, escapes, strict=False))


members = st.lists(
    st.tuples(st.just("model"), st.sampled_from(["a", "b", "c"]))
    | st.tuples(st.just("stream"), st.booleans())
    | st.tuples(st.just("n"), st.integers(1, 9))
    | st.tuples(st.just("max_tokens"), st.integers(1, 9))
    | st.tuples(st.just("session_id"), st.sampled_from(["s", "t"]))
    | st.tuples(st.just("Model"), st.integers()),
    max_size=8,
)


@given(members, st.lists(st.booleans(), min_size=80, max_size=80), st.sampled_from([0, SMALL]))
def test_what_we_read_is_what_the_engine_reads(
    fields: list[tuple[str, Any]], escapes: list[bool], padding: int
) -> None:
    """Escaped names are read as Python's own `json` reads them, as vLLM does; repeated ones are refused."""
    fields = [("model", "z"), *fields, ("user", "u" * padding)]
    raw = (
        "{"
        + ",".join(f'"{spelled(name, escapes[at:])}":{json.dumps(value)}' for at, (name, value) in enumerate(fields))
        + "}"
    )
    engine = json.loads(raw)
    names = [name for name, _ in fields]
    repeated = [name for name in names if names.count(name) > 1]
    reading = read_or_refused(Api.CHAT, raw.encode())
    if isinstance(reading, Refused):
        assert reading.param in repeated
        return
    assert set(repeated) <= ({"Model"} if padding else set())
    request = reading.request
    assert request.model == engine["model"]
    assert request.stream == engine.get("stream", False)
    assert request.sequences == engine.get("n", 1)
    assert request.max_tokens == engine.get("max_tokens")
    assert request.session == engine.get("session_id")


@given(st.sampled_from(list(Api)), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(api: Api, raw: bytes) -> None:
    """No bytes raise anything but a refusal."""
    with_model = b'{"model": "m", ' + raw
    for body in (raw, with_model, with_model + b"}"):
        read_or_refused(api, body)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([
        "role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "input", "image_url", "uuid",
    ]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FIELDS = st.sampled_from(
    [
        *("messages", "prompt", "input", "system", "instructions", "tools", "documents", "query", "text_1", "data_2"),
        *("stream", "stream_options", "n", "max_tokens", "session_id", "conversation", "previous_response_id"),
        *("chat_template_kwargs", "cache_salt", "priority", "thinking", "reasoning", "prompt_embeds"),
    ]
)


@given(st.sampled_from(list(Api)), st.dictionaries(FIELDS, ANY_JSON, max_size=5))
def test_any_json_is_read_or_refused(api: Api, body: dict[str, Any]) -> None:
    """Fields of every type and depth: read or refused, and what is read can be sent and written down."""
    reading = read_or_refused(api, json.dumps({"model": "m"} | body).encode())
    if isinstance(reading, Refused):
        assert reading.message.encode()
    else:
        assert json.loads(reading.body)["model"] == "m"
        assert reading.request.sequences >= 1
        assert reading.request.expected_output_tokens >= 0


@given(st.integers(0, len(BODY) - 1), st.integers(0, 255))
def test_a_flipped_byte_is_read_or_refused(at: int, byte: int) -> None:
    """A body damaged anywhere is one or the other."""
    read_or_refused(Api.CHAT, BODY[:at] + bytes([byte]) + BODY[at + 1 :])


@pytest.mark.parametrize("depth", [10, 100])
def test_depth_that_schemas_have_is_fine(depth: int) -> None:
    """Nesting is refused where it is absurd, not where a tool's schema is rich."""
    schema = b'{"properties":' * depth + b"{}" + b"}" * depth
    assert read(Api.CHAT, b'{"model": "m", "tools": [' + schema + b"]}").request.prompt.size > depth


@pytest.mark.parametrize(
    ("api", "more", "holds_back"),
    [
        (Api.CHAT, b"", False),
        (Api.CHAT, b', "tools": []', False),
        (Api.CHAT, b', "tools": null, "include_reasoning": true', False),
        (Api.CHAT, b', "include_reasoning": false', True),
        (Api.CHAT, b', "tools": [{}]', True),
        (Api.RESPONSES, b', "tools": [{}]', True),
        (Api.RESPONSES, b"", False),
        (Api.MESSAGES, b', "tools": [{}]', True),
        (Api.MESSAGES, b"", False),
        (Api.COMPLETIONS, b', "tools": [{}]', False),
    ],
)
def test_what_an_engine_may_hold_back_is_known(api: Api, more: bytes, holds_back: bool) -> None:
    """Calls of tools, and thoughts that are not to be shown."""
    assert read(api, b'{"model": "m"' + more + b"}").request.holds_back is holds_back
