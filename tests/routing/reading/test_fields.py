"""The table of request fields agrees with what reading does with them."""

from __future__ import annotations

import json

import pytest

from routing.reading.bodies import BODIES
from routing.reading.fields import PASSED, FieldHandling, handling_of
from routing.reading.requests import DefaultParsePolicy, read_request
from routing.reading.rewriting import RESERVED_FIELDS
from routing.rejection import RequestRejected
from routing.request import Api


@pytest.mark.parametrize("api", Api)
def test_every_field_that_reading_names_is_in_the_table(api: Api) -> None:
    """What a body has a field for is classified for its API, or for engines other than today's."""
    older = {"data_parallel_rank", "best_of", "session_id", "conversation"}
    for field in set(BODIES[api].__struct_fields__) - older:
        if BODIES[api].__name__ not in {"Body", "InputsBody", "PairsBody"}:
            assert handling_of(api, field) is not None, field


@pytest.mark.parametrize("api", Api)
def test_no_field_is_in_two_classes(api: Api) -> None:
    """What is passed is neither clamped nor ours nor rejected."""
    assert {handling_of(api, field) for field in PASSED[api]} == {FieldHandling.PASSED}


def test_fields_of_ours_do_not_reach_a_pod() -> None:
    """What steers an engine is taken out, the interval of streamed events among it; limits count events."""
    for field in RESERVED_FIELDS:
        body = json.dumps({"model": "m", "messages": [], "stream": True, field: 500}).encode()
        sent = read_request(Api.CHAT, body, request_id="r").body
        assert field not in json.loads(sent)


@pytest.mark.parametrize("stream", [False, True])
def test_background_is_rejected_where_a_policy_is_in_force(stream: bool) -> None:
    """An engine would go on with it when its slot and its reserve are free again; without a policy it is passed on."""
    body = json.dumps({"model": "m", "input": "hi", "background": True, "stream": stream}).encode()
    with pytest.raises(RequestRejected) as rejected:
        read_request(Api.RESPONSES, body, request_id="r", terms=DefaultParsePolicy("search"))
    assert rejected.value.param == "background"
    assert json.loads(read_request(Api.RESPONSES, body, request_id="r").body)["background"] is True
    plain = json.dumps({"model": "m", "input": "hi", "background": False}).encode()
    assert read_request(Api.RESPONSES, plain, request_id="r", terms=DefaultParsePolicy("search")).body == plain


def test_what_shapes_the_prompt_is_counted() -> None:
    """Documents and templates become prompt: a request is as large with them as with so much text."""
    documents = [{"title": "t", "text": "x" * 5_000}]
    body = json.dumps({"model": "m", "messages": [], "documents": documents}).encode()
    assert read_request(Api.CHAT, body, request_id="r").request.unseen_bytes > 5_000
    data = json.dumps({"model": "m", "data": {"text": "x" * 5_000}}).encode()
    assert read_request(Api.POOLING, data, request_id="r").request.prompt.size > 5_000


def test_answers_that_a_request_wants_for_certain_are_counted() -> None:
    """As many as the larger of `n` and `best_of`, each with at least `min_tokens`."""
    body = json.dumps({"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 5, "min_tokens": 7}).encode()
    request = read_request(Api.COMPLETIONS, body, request_id="r").request
    assert (request.sequences, request.min_tokens) == (10, 7)
