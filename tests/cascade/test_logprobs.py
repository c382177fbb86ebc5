"""Log-probabilities are asked for beside what the client wants, and taken out as if nobody had asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cascade.logprobs import LogprobFilter, add_logprobs
from routing.request import Api
from tests.gateway.cascades.logprob_streams import chat, entry, reported


@pytest.mark.parametrize(
    ("api", "given", "requested", "most"),
    [
        (Api.CHAT, {}, {"logprobs": True, "top_logprobs": 5}, None),
        (Api.CHAT, {"logprobs": False}, {"logprobs": True, "top_logprobs": 5}, None),
        (Api.CHAT, {"logprobs": True, "top_logprobs": 1}, {"logprobs": True, "top_logprobs": 5}, 1),
        (Api.COMPLETIONS, {}, {"logprobs": 5}, None),
        (Api.COMPLETIONS, {"logprobs": 1}, {"logprobs": 5}, 1),
        (Api.RESPONSES, {}, {"include": ["message.output_text.logprobs"], "top_logprobs": 5}, None),
    ],
)
def test_what_a_pod_is_sent(api: Api, given: dict[str, Any], requested: dict[str, Any], most: int | None) -> None:
    """Everything else is as the client wrote it."""
    body, trim = add_logprobs(api, json.dumps({"model": "a", "stream": True} | given).encode(), 5)
    assert json.loads(body) == {"model": "a", "stream": True} | given | requested
    assert trim == LogprobFilter(api, most)


def test_who_requests_as_many_gets_them_all() -> None:
    """Nothing is taken out."""
    given = json.dumps({"model": "a", "logprobs": True, "top_logprobs": 8}).encode()
    body, trim = add_logprobs(Api.CHAT, given, 5)
    assert json.loads(body)["top_logprobs"] == 8
    assert trim is None


def test_messages_have_none() -> None:
    """The body goes on as it came."""
    assert add_logprobs(Api.MESSAGES, b'{"model":"a"}', 5) == (b'{"model":"a"}', None)


def test_who_requests_fewer_gets_fewer() -> None:
    """So many of the likeliest at each place as were asked for."""
    sure = chat({"content": "a"}, {"content": [entry("a", -0.1)]})
    fewer = entry("a", -0.1)
    fewer["top_logprobs"] = fewer["top_logprobs"][:1]
    assert LogprobFilter(Api.CHAT, 1).filter_event(sure) == chat({"content": "a"}, {"content": [fewer]})
    choice = {
        "index": 0,
        "text": "a",
        "logprobs": {"tokens": ["a"], "top_logprobs": [{"a": -1.0, "b": -2.0, "c": -3.0}]},
    }
    [kept] = json.loads(LogprobFilter(Api.COMPLETIONS, 1).filter_event(reported({"choices": [choice]}))[5:])["choices"]
    assert kept["logprobs"]["top_logprobs"] == [{"a": -1.0, "b": -2.0}]


@pytest.mark.parametrize(
    "event", [b"data: [DONE]\n\n", b": hello\n\n", b'data: {"logprobs":\n\n', b'data: 1"logprobs"\n\n']
)
def test_what_is_no_answer_goes_on_as_it_came(event: bytes) -> None:
    """Ends, comments and what is no JSON."""
    assert LogprobFilter(Api.CHAT).filter_events(event) == event


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES])
@pytest.mark.parametrize("max_top", [None, 2])
@pytest.mark.parametrize(
    "logprobs",
    [
        *("5", '"a"', "[1]", "[" * 900 + "]" * 900, '[{"top_logprobs":{"a":1}}]'),
        *('{"content":true}', '{"content":[5]}', '{"content":[{"top_logprobs":{}}]}'),
        *('{"top_logprobs":5}', '{"top_logprobs":["a",null]}'),
    ],
)
def test_nothing_that_a_pod_sends_in_their_place_fails(api: Api, max_top: int | None, logprobs: str) -> None:
    """What is no list of tokens is not the client's either: the event goes on, as JSON where it was JSON."""
    inner = f'"logprobs":{logprobs}' if api is Api.RESPONSES else f'"choices":[{{"index":0,"logprobs":{logprobs}}}]'
    event = f'data: {{"type":"x",{inner}}}\n\n'.encode()
    filtered = LogprobFilter(api, max_top).filter_events(event)
    assert filtered.startswith(b"data: {")
    assert filtered.endswith(b"}\n\n")
