"""Bodies read under terms: other names of models, a bound on answers, a cache of one's own, sessions apart."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routing.reading import ParsedRequest, read_request
from routing.reading.requests import DefaultParsePolicy, cache_salt
from routing.reading.validation import SMALL
from routing.rejection import RequestRejected
from routing.request import Api
from tests.routing.reading.wire import Json, texts

HI = [{"role": "user", "content": "Hi"}]


def sent(api: Api, body: Json, terms: DefaultParsePolicy) -> Any:
    return json.loads(read_request(api, json.dumps(body).encode(), request_id="r", terms=terms).body)


@pytest.mark.parametrize(
    ("api", "body", "fields"),
    [
        (Api.CHAT, {}, {"max_completion_tokens": 8}),
        (Api.CHAT, {"max_tokens": 5}, {"max_tokens": 5}),
        (Api.CHAT, {"max_tokens": 9}, {"max_tokens": 8}),
        (Api.CHAT, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": 8}),
        (Api.CHAT, {"max_tokens": 3, "max_completion_tokens": 99}, {"max_tokens": 3, "max_completion_tokens": 8}),
        (Api.COMPLETIONS, {}, {"max_tokens": 8}),
        (Api.COMPLETIONS, {"max_tokens": None}, {"max_tokens": 8}),
        (Api.COMPLETIONS, {"max_tokens": 0, "echo": True}, {"max_tokens": 0, "echo": True}),
        (Api.RESPONSES, {"max_tokens": 9}, {"max_tokens": 9, "max_output_tokens": 8}),
        (Api.RESPONSES, {"max_output_tokens": 9}, {"max_output_tokens": 8}),
        (Api.MESSAGES, {"max_tokens": 9}, {"max_tokens": 8}),
        (Api.MESSAGES, {"max_tokens": 8}, {"max_tokens": 8}),
        (Api.EMBEDDINGS, {}, {}),
        (Api.TOKENIZE, {}, {}),
    ],
)
def test_no_answer_may_be_longer_than_the_cap(api: Api, body: Json, fields: Json) -> None:
    """Limits above it are brought down, a missing one is added in the words of the API, and lower ones stay."""
    assert sent(api, {"model": "m"} | body, DefaultParsePolicy(output_cap=8)) == {"model": "m"} | fields


def test_the_cap_is_what_decisions_see() -> None:
    """An answer is taken to be no longer than it may be."""
    raw = json.dumps({"model": "m", "messages": HI}).encode()
    assert read_request(Api.CHAT, raw, request_id="r", terms=DefaultParsePolicy(output_cap=8)).request.max_tokens == 8


def test_a_short_completion_needs_no_cap() -> None:
    """Without a limit completions have sixteen tokens: a cap above that changes nothing."""
    assert sent(Api.COMPLETIONS, {"model": "m", "prompt": "Hi"}, DefaultParsePolicy(output_cap=16)) == {
        "model": "m",
        "prompt": "Hi",
    }


def test_an_alias_is_the_model_it_stands_for() -> None:
    """The pod is asked for the model it knows, and the prompt is as warm as under the model's own name."""
    terms = DefaultParsePolicy(aliases={"gpt": "qwen"})
    by_alias = read_request(Api.CHAT, b'{"messages": [], "model" : "gpt"}', request_id="r", terms=terms)
    by_name = read_request(Api.CHAT, b'{"messages": [], "model" : "qwen"}', request_id="r", terms=terms)
    assert by_alias.body == by_name.body
    assert by_alias.request.requested_model == "gpt"
    assert replace(by_alias.request, requested_model="qwen") == by_name.request


def test_a_model_can_be_put_in_the_place_of_another() -> None:
    """As a smaller one is under overload: its own prompt, its own name."""
    reading = read_request(Api.CHAT, b'{"model":"big","messages":[]}', request_id="r", model="small")
    assert json.loads(reading.body)["model"] == reading.request.model == "small"


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.EMBEDDINGS, Api.RERANK])
def test_trust_domains_share_no_cache(api: Api) -> None:
    """The engine is told the domain as its salt, whatever the client says, and our own hashes differ as well."""
    body = {"model": "m", "messages": HI, "prompt": "x" * 999, "input": "x" * 999, "query": "x" * 999}
    one, other = (DefaultParsePolicy("t", trust_domain=domain) for domain in ("one", 'o"ther'))
    salts = [sent(api, body | {"cache_salt": "one"}, terms)["cache_salt"] for terms in (one, other)]
    assert salts == [cache_salt("one"), cache_salt('o"ther')]
    assert len({"one", *salts}) == 3
    raw = json.dumps(body).encode()
    seeds = {
        read_request(api, raw, request_id="r", terms=terms).request.prompt.seed
        for terms in (one, other, DefaultParsePolicy())
    }
    assert len(seeds) == 3


@pytest.mark.parametrize("name", ["acme", "a@b", "a\\b", "n" * 128, "\u00e4\u00f6", "hearth-x", '"'])
def test_every_name_makes_a_salt_that_engines_take(name: str) -> None:
    """Engines reject salts of more than 128 characters and those with `@`, `/`, a backslash or NUL."""
    salt = sent(Api.CHAT, {"model": "m", "messages": HI}, DefaultParsePolicy("t", trust_domain=f"tenant:{name}"))[
        "cache_salt"
    ]
    assert re.fullmatch(r"[a-z0-9-]{1,128}", salt)
    assert salt != cache_salt(f"domain:{name}")


def test_every_gateway_makes_the_same_salt() -> None:
    """A salt that changed with a version or a process would leave all prefixes of a fleet cold."""
    assert cache_salt("tenant:acme") == "hearth-cef41eed96b2cb03f04f8adef1c9def6bca304e15938aed6320ae022aa3f2ba4"


def test_what_leaves_nothing_in_a_cache_needs_no_salt() -> None:
    """Tokenising goes on as it came."""
    assert sent(Api.TOKENIZE, {"model": "m", "prompt": "x"}, DefaultParsePolicy(trust_domain="d")) == {
        "model": "m",
        "prompt": "x",
    }


def test_sessions_and_stored_responses_are_their_tenants() -> None:
    """What clients choose or guess is a name within their tenant."""
    raw = b'{"model":"m","input":"x","session_id":"s","previous_response_id":"resp_1"}'
    request = read_request(Api.RESPONSES, raw, request_id="r", terms=DefaultParsePolicy("a")).request
    assert (request.session, request.continues) == ("a/s", "a/resp_1")
    request = read_request(Api.RESPONSES, raw, request_id="r").request
    assert (request.session, request.continues) == ("s", "resp_1")


names = st.sampled_from(["max_tokens", "max_completion_tokens", "model", "user", "tools", "cache_salt", "stream"])
nested = st.recursive(
    st.none() | st.integers() | names | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
limits = st.none() | st.integers(1, 20)


@given(
    st.lists(
        st.tuples(st.sampled_from(["max_tokens", "max_completion_tokens"]), limits)
        | st.tuples(st.sampled_from(["user", "tools", "cache_salt"]), nested),
        max_size=5,
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_no_spelling_evades_its_terms(
    fields: list[tuple[str, Any]], stream: bool, spelled: bool, indent: int | None
) -> None:
    """Names that stand further in or are spelled with escapes: the pod reads what the terms say. None may repeat."""
    members = [("model", "gpt"), ("stream", stream), *fields]
    raw = b"{" + b", ".join(
        (_escaped(name) if spelled else json.dumps(name).encode()) + b" : " + json.dumps(value, indent=indent).encode()
        for name, value in members
    ) + b"}\n"  # fmt: skip
    terms = DefaultParsePolicy("t", {"gpt": "qwen"}, output_cap=8, trust_domain="d")
    if len(dict(members)) < len(members):
        with pytest.raises(RequestRejected, match="occurs more than once"):
            read_request(Api.CHAT, raw, request_id="r", terms=terms)
        return
    reading = read_request(Api.CHAT, raw, request_id="r", terms=terms)
    pairs = json.loads(reading.body, object_pairs_hook=lambda pairs: pairs)
    body, stated = dict(pairs), json.loads(raw)
    assert [name for name, _ in pairs].count("cache_salt") == [name for name, _ in pairs].count("model") == 1
    assert (body["model"], body["cache_salt"]) == ("qwen", cache_salt("d"))
    given_limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    assert given_limits
    assert all(limit <= 8 for limit in given_limits)
    assert given_limits[0] == reading.request.max_tokens
    for name in ("user", "tools"):
        assert json.loads(reading.body).get(name) == stated.get(name)


def _escaped(name: str) -> bytes:
    return b'"\\u%04x' % ord(name[0]) + name[1:].encode() + b'"'


BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi \\u00e9 \xc3\xa9"}], "n": 2}'


def read(api: Api, body: bytes, session: str | None = None) -> ParsedRequest:
    return read_request(api, body, request_id="req-1", session=session)


def read_or_refused(api: Api, body: bytes) -> ParsedRequest | RequestRejected:
    """What becomes of a body. Any other exception is a fault."""
    try:
        return read(api, body)
    except RequestRejected as rejected:
        return rejected


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
    if isinstance(reading, RequestRejected):
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
def test_any_bytes_are_read_or_rejected(api: Api, raw: bytes) -> None:
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
def test_any_json_is_read_or_rejected(api: Api, body: dict[str, Any]) -> None:
    """Fields of every type and depth: read or refused, and what is read can be sent and written down."""
    reading = read_or_refused(api, json.dumps({"model": "m"} | body).encode())
    if isinstance(reading, RequestRejected):
        assert reading.message.encode()
    else:
        assert json.loads(reading.body)["model"] == "m"
        assert reading.request.sequences >= 1
        assert reading.request.expected_output_tokens >= 0


@given(st.integers(0, len(BODY) - 1), st.integers(0, 255))
def test_a_flipped_byte_is_read_or_rejected(at: int, byte: int) -> None:
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
