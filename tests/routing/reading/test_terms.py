"""Bodies read under terms: other names of models, a bound on answers, a cache of one's own, sessions apart."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import read_request
from routing.reading.terms import PlainTerms, salt_of
from routing.rejection import Refused
from routing.request import Api
from tests.routing.reading.wire import Json

HI = [{"role": "user", "content": "Hi"}]


def sent(api: Api, body: Json, terms: PlainTerms) -> Any:
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
    assert sent(api, {"model": "m"} | body, PlainTerms(output_cap=8)) == {"model": "m"} | fields


def test_the_cap_is_what_decisions_see() -> None:
    """An answer is taken to be no longer than it may be."""
    raw = json.dumps({"model": "m", "messages": HI}).encode()
    assert read_request(Api.CHAT, raw, request_id="r", terms=PlainTerms(output_cap=8)).request.max_tokens == 8


def test_a_short_completion_needs_no_cap() -> None:
    """Without a limit completions have sixteen tokens: a cap above that changes nothing."""
    assert sent(Api.COMPLETIONS, {"model": "m", "prompt": "Hi"}, PlainTerms(output_cap=16)) == {
        "model": "m",
        "prompt": "Hi",
    }


def test_an_alias_is_the_model_it_stands_for() -> None:
    """The pod is asked for the model it knows, and the prompt is as warm as under the model's own name."""
    terms = PlainTerms(aliases={"gpt": "qwen"})
    by_alias = read_request(Api.CHAT, b'{"messages": [], "model" : "gpt"}', request_id="r", terms=terms)
    by_name = read_request(Api.CHAT, b'{"messages": [], "model" : "qwen"}', request_id="r", terms=terms)
    assert by_alias.body == by_name.body
    assert by_alias.request == by_name.request


def test_a_model_can_be_put_in_the_place_of_another() -> None:
    """As a smaller one is under overload: its own prompt, its own name."""
    reading = read_request(Api.CHAT, b'{"model":"big","messages":[]}', request_id="r", model="small")
    assert json.loads(reading.body)["model"] == reading.request.model == "small"


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.EMBEDDINGS, Api.RERANK])
def test_trust_domains_share_no_warmth(api: Api) -> None:
    """The engine is told the domain as its salt, whatever the client says, and our own hashes differ as well."""
    body = {"model": "m", "messages": HI, "prompt": "x" * 999, "input": "x" * 999, "query": "x" * 999}
    one, other = (PlainTerms("t", trust_domain=domain) for domain in ("one", 'o"ther'))
    salts = [sent(api, body | {"cache_salt": "one"}, terms)["cache_salt"] for terms in (one, other)]
    assert salts == [salt_of("one"), salt_of('o"ther')]
    assert len({"one", *salts}) == 3
    raw = json.dumps(body).encode()
    seeds = {
        read_request(api, raw, request_id="r", terms=terms).request.prompt.seed for terms in (one, other, PlainTerms())
    }
    assert len(seeds) == 3


@pytest.mark.parametrize("name", ["acme", "a@b", "a\\b", "n" * 128, "\u00e4\u00f6", "hearth-x", '"'])
def test_every_name_makes_a_salt_that_engines_take(name: str) -> None:
    """Engines reject salts of more than 128 characters and those with `@`, `/`, a backslash or NUL."""
    salt = sent(Api.CHAT, {"model": "m", "messages": HI}, PlainTerms("t", trust_domain=f"tenant:{name}"))["cache_salt"]
    assert re.fullmatch(r"[a-z0-9-]{1,128}", salt)
    assert salt != salt_of(f"domain:{name}")


def test_every_gateway_makes_the_same_salt() -> None:
    """A salt that changed with a version or a process would leave all prefixes of a fleet cold."""
    assert salt_of("tenant:acme") == "hearth-cef41eed96b2cb03f04f8adef1c9def6bca304e15938aed6320ae022aa3f2ba4"


def test_what_leaves_nothing_in_a_cache_needs_no_salt() -> None:
    """Tokenising goes on as it came."""
    assert sent(Api.TOKENIZE, {"model": "m", "prompt": "x"}, PlainTerms(trust_domain="d")) == {
        "model": "m",
        "prompt": "x",
    }


def test_sessions_and_stored_responses_are_their_tenants() -> None:
    """What clients choose or guess is a name within their tenant."""
    raw = b'{"model":"m","input":"x","session_id":"s","previous_response_id":"resp_1"}'
    request = read_request(Api.RESPONSES, raw, request_id="r", terms=PlainTerms("a")).request
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
    terms = PlainTerms("t", {"gpt": "qwen"}, output_cap=8, trust_domain="d")
    if len(dict(members)) < len(members):
        with pytest.raises(Refused, match="stands twice"):
            read_request(Api.CHAT, raw, request_id="r", terms=terms)
        return
    reading = read_request(Api.CHAT, raw, request_id="r", terms=terms)
    pairs = json.loads(reading.body, object_pairs_hook=lambda pairs: pairs)
    body, said = dict(pairs), json.loads(raw)
    assert [name for name, _ in pairs].count("cache_salt") == [name for name, _ in pairs].count("model") == 1
    assert (body["model"], body["cache_salt"]) == ("qwen", salt_of("d"))
    given_limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    assert given_limits
    assert all(limit <= 8 for limit in given_limits)
    assert given_limits[0] == reading.request.max_tokens
    for name in ("user", "tools"):
        assert json.loads(reading.body).get(name) == said.get(name)


def _escaped(name: str) -> bytes:
    return b'"\\u%04x' % ord(name[0]) + name[1:].encode() + b'"'
