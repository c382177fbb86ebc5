"""Paths: what goes to a pod, what is answered here, what is fetched from the pod that stored it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routing.pods import ModelCard, Pod, PodState
from routing.request import Api
from tenancy.tenants import Caller, Tenant
from tests.gateway.http.rig import MODEL, a_chat, a_rig, put_pod, request_bytes
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import STREAM_HEAD, answer_bytes, chat_answer, chunked, error_answer, event

TEXT = {"model": MODEL, "input": "hello"}
PAIRS = {"model": MODEL, "query": "a", "documents": ["b", "c"]}
SERVED: list[tuple[str, Api, dict[str, Any]]] = [
    ("/v1/chat/completions", Api.CHAT, a_chat()),
    ("/v1/completions", Api.COMPLETIONS, {"model": MODEL, "prompt": "hello"}),
    ("/v1/responses", Api.RESPONSES, TEXT),
    ("/v1/messages", Api.MESSAGES, a_chat(max_tokens=5)),
    ("/v1/messages/count_tokens", Api.TOKENIZE, a_chat()),
    ("/v1/embeddings", Api.EMBEDDINGS, TEXT),
    ("/v1/rerank", Api.RERANK, PAIRS),
    ("/rerank", Api.RERANK, PAIRS),
    ("/v2/rerank", Api.RERANK, PAIRS),
    ("/v1/score", Api.SCORE, {"model": MODEL, "text_1": "a", "text_2": "b"}),
    ("/score", Api.SCORE, {"model": MODEL, "text_1": "a", "text_2": "b"}),
    ("/pooling", Api.POOLING, TEXT),
    ("/classify", Api.CLASSIFY, TEXT),
    ("/tokenize", Api.TOKENIZE, {"model": MODEL, "prompt": "hello"}),
    ("/detokenize", Api.DETOKENIZE, {"model": MODEL, "tokens": [1, 2]}),
]


@pytest.mark.parametrize(("path", "api", "body"), SERVED, ids=[path for path, _, _ in SERVED])
async def test_every_path_reaches_a_pod_as_it_is(path: str, api: Api, body: dict[str, Any]) -> None:
    """All that vLLM serves: the same path, the same body, the pod's answer."""
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes({"told": path})])
        answer = await rig.ask(path, body)
        assert answer.json() == {"told": path}
        (question,) = rig.pod.questions
        assert (question.path, question.json()) == (path, body)
    (outcome,) = rig.outcomes
    assert (outcome.api, outcome.model, outcome.status) == (api, MODEL, 200)


async def test_an_api_that_the_model_does_not_serve_is_reported_clearly() -> None:
    """FastAPI says "Not Found" where a route is not mounted: that is about the model, not about the path."""
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes({"detail": "Not Found"}, 404)])
        answer = await rig.ask("/v1/embeddings", TEXT)
        assert (answer.status, answer.code) == (404, "unsupported_api")
        assert answer.json()["error"]["message"] == f"The model `{MODEL}` does not serve /v1/embeddings."


async def test_a_context_that_is_too_long_is_reported_by_openais_code() -> None:
    """The code that clients look for, whatever number the engine has put there."""
    words = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049."
    async with a_rig() as rig:
        rig.pod.plays([error_answer(words, 400, param="input_tokens")])
        answer = await rig.ask("/v1/chat/completions", a_chat(stream=True))
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        rig.pod.plays([answer_bytes({"type": "error", "error": {"type": "BadRequestError", "message": words}}, 400)])
        reported = (await rig.ask("/v1/messages", a_chat(max_tokens=5))).json()
        assert reported["type"] == "error"
        assert reported["error"] == {"type": "invalid_request_error", "message": words}
    assert [outcome.status for outcome in rig.outcomes] == [400, 400]


async def test_models_are_merged_over_pods() -> None:
    """One list of all that the pods together serve; the shortest length that any of them has."""
    async with a_rig(pods=2) as rig:
        url = rig.pods[1].url
        cards = (ModelCard(MODEL, max_model_len=2048), ModelCard("org/lora", root="/lora", parent=MODEL))
        rig.router.put_pod(
            Pod(url, PodState.UNREADY, frozenset({MODEL, "org/lora"}), frozenset({"org/lora"}), cards=cards)
        )
        client = await rig.client()
        page = (await client.ask("/v1/models")).json()
        assert page["object"] == "list"
        assert {card["id"]: card["max_model_len"] for card in page["data"]} == {MODEL: 2048, "org/lora": None}
        for path in ("/v1/models/org/lora", "/v1/models/org%2Flora"):
            card = (await client.ask(path)).json()
            assert card == {
                "id": "org/lora",
                "object": "model",
                "created": 1_800_000_000,
                "owned_by": "hearth",
                "root": "/lora",
                "parent": MODEL,
                "max_model_len": None,
            }
        answer = await client.ask("/v1/models/nope")
        assert (answer.status, answer.code) == (404, "model_not_found")


COMPLETED = {"response": {"id": "resp_1", "status": "completed", "output": []}, "type": "response.completed"}


async def test_a_stored_response_is_fetched_from_the_pod_that_made_it() -> None:
    """Getting, cancelling and deleting go where the response is; what is stored nowhere is told so."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD + chunked([event(COMPLETED, "response.completed")])], [answer_bytes({"id": 1})])
        rig.pods[1].plays([error_answer("wrong pod", 404)])
        client = await rig.client()
        assert (await client.ask("/v1/responses", {**TEXT, "stream": True})).status == 200
        for method, path in (
            ("GET", "/v1/responses/resp_1"),
            ("DELETE", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
        ):
            answer = await client.ask(path, method=method)
            assert (answer.status, answer.json()) == (200, {"id": 1})
            assert rig.pods[0].questions[-1].line == f"{method} {path} HTTP/1.1"
        assert (await client.ask("/v1/responses/resp_2", method="GET")).status == 404
        assert (await client.ask("/v1/responses/resp_1/../../admin", method="GET")).status == 404
        assert not rig.pods[1].questions
    assert [(outcome.status, outcome.api, outcome.usage) for outcome in rig.outcomes[1:]] == [
        *[(200, Api.RESPONSES, None)] * 3,
        (404, Api.RESPONSES, None),
    ]
    assert {outcome.model for outcome in rig.outcomes[:4]} == {MODEL}


async def test_a_stored_response_names_no_model() -> None:
    """It was requested by its id: where its pod has no such path, the message names no model, which none was sent."""
    async with a_rig() as rig:
        nothing = answer_bytes({"detail": "Not Found"}, status=404)
        rig.pod.plays([STREAM_HEAD + chunked([event(COMPLETED, "response.completed")])], [nothing])
        client = await rig.client()
        assert (await client.ask("/v1/responses", {**TEXT, "stream": True})).status == 200
        error = (await client.ask("/v1/responses/resp_1", method="GET")).json()["error"]
        assert error["message"] == "The pod that has it does not serve /v1/responses/resp_1."
        assert error["param"] is None


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages/batches/b_1/results?x=1", "/v1/messages/"])
async def test_what_is_not_served_of_anthropics_api_is_reported_in_its_format(path: str) -> None:
    """Its clients understand no other; a path that only begins alike is OpenAI's."""
    async with a_rig() as rig:
        client = await rig.client()
        answer = await client.ask(path, {})
        assert (answer.status, answer.json()["type"]) == (404, "error")
        assert answer.json()["error"]["type"] == "not_found_error"
        assert (await client.ask("/v1/messagesX", {})).json()["error"]["code"] == "unknown_url"


async def test_a_model_that_may_not_be_used_stands_in_the_log() -> None:
    """By the name that was asked for; so does one that goes on with another's response."""
    tenant = Tenant("t", frozenset({"small"}))
    async with a_rig(identify=lambda *_: Caller(tenant)) as rig:
        client = await rig.client()
        answer = await client.ask("/v1/chat/completions", {"model": "secret-model", "messages": []})
        assert (answer.status, answer.code) == (404, "model_not_found")
        more = {"model": "small", "input": "x", "previous_response_id": "resp_of_another"}
        assert (await client.ask("/v1/responses", more)).status == 404
    assert [outcome.model for outcome in rig.outcomes] == ["secret-model", "small"]
    assert [outcome.status for outcome in rig.outcomes] == [404, 404]


async def test_a_rewrite_chooses_the_model_and_widens_nothing() -> None:
    """It comes after the tenant's aliases and once for each request; a target that is not allowed is rejected."""
    tenant = Tenant("t", frozenset({MODEL, "other"}), aliases={"gpt": "chat"})
    asked: list[str] = []

    def rewrite(model: str) -> str:
        asked.append(model)
        return {"chat": MODEL, "free": "secret-model"}.get(model, model)

    async with a_rig(identify=lambda *_: Caller(tenant)) as rig:
        rig.front.dispatcher.rewrite_models_with(rewrite)
        for name, status in (("gpt", 200), (MODEL, 200), ("free", 404)):
            rig.pod.plays([answer_bytes({"told": name})])
            assert (await rig.ask("/v1/chat/completions", {**a_chat(), "model": name})).status == status
        assert [question.json()["model"] for question in rig.pod.questions] == [MODEL, MODEL]
    assert asked == ["chat", MODEL, "free"]
    assert [outcome.model for outcome in rig.outcomes] == [MODEL, MODEL, "secret-model"]


async def test_a_stored_response_whose_pod_is_gone_is_reported() -> None:
    """It is lost with its pod; nobody else is asked."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD + chunked([event(COMPLETED, "response.completed")])])
        client = await rig.client()
        assert (await client.ask("/v1/responses", {**TEXT, "stream": True})).status == 200
        rig.front.pool.close()
        rig.pods[0].close_listener()
        answer = await client.ask("/v1/responses/resp_1", method="GET")
        assert (answer.status, answer.code) == (502, "pod_unreachable")


async def test_fetching_is_given_up_when_the_client_goes() -> None:
    """Errands end with their client, as requests do."""
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunked([event(COMPLETED, "response.completed")])], [asyncio.Event()])
        client = await rig.client()
        await client.ask("/v1/responses", {**TEXT, "stream": True})
        await client.send(request_bytes("/v1/responses/resp_1"))
        await until(lambda: len(rig.pod.questions) == 2)
        client.leave()
        await until(lambda: not rig.pod.writers)


async def test_a_rank_of_a_pod_is_addressed() -> None:
    """Data-parallel ranks are engines of their own behind one address."""
    async with a_rig(ranks=(0, 1)) as rig:
        rig.pod.plays([answer_bytes(chat_answer())])
        for _ in range(2):
            await rig.ask("/v1/chat/completions", a_chat())
        assert sorted(question.headers["x-data-parallel-rank"] for question in rig.pod.questions) == ["0", "1"]


async def test_a_pod_below_a_path_is_called_there() -> None:
    """A pod's URL may have a path before its own."""
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes(chat_answer())])
        rig.router.remove_pod(rig.pod.url)
        put_pod(rig.router, f"{rig.pod.url}/models/a/")
        assert (await rig.ask("/v1/chat/completions", a_chat())).status == 200
        assert rig.pod.questions[0].path == "/models/a/v1/chat/completions"


async def test_no_pod_is_reported_as_such() -> None:
    """The model exists and nobody is ready: come back later."""
    async with a_rig() as rig:
        rig.router.put_pod(Pod(rig.pod.url, PodState.UNREADY, frozenset({MODEL})))
        answer = await rig.ask("/v1/chat/completions", a_chat())
        assert (answer.status, answer.code) == (503, "server_is_overloaded")
        assert int(answer.headers["retry-after-ms"]) >= 1000
        assert "x-should-retry" not in answer.headers
