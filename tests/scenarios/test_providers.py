"""Providers outside the fleet as clients, operators and tenants see them: a whole gateway beside local providers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.scenarios.cascade_pods import ESCALATES
from tests.scenarios.provider_scene import ALLOWED, GRANT, ProviderScene, a_provider_scene, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEVER = ESCALATES / 2 - 0.01
"""No answer is as sure as that."""

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SONNET = {"provider": "claude", "region": "us", "models": ["sonnet"]}

TENANTS: dict[str, dict[str, Any]] = {
    "allowed": {"providers": [GRANT, SONNET], "providers_max_budget": "off"},
    "denied": {},
    "elsewhere": {"providers": [GRANT | {"region": "us"}], "providers_max_budget": "off"},
    "bound": ALLOWED | {"allowed_regions": ["on-prem"]},
    "poor": ALLOWED | {"providers_max_budget": 0.0005},
    "rare": ALLOWED | {"providers_max_share": 0.2},
}

CANARY = "canary-93e1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProviderScene]:
    """No local answer of `auto` is accepted."""
    async with a_provider_scene(tmp_path_factory.mktemp("providers"), TENANTS, threshold=NEVER) as place:
        yield place


def content_of(text: str) -> str:
    """The text of a chat answer, complete or streamed."""
    if text.startswith("{"):
        return str(json.loads(text)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


@pytest.mark.parametrize("stream", [True, False])
async def test_an_allowed_model_is_answered_by_its_provider(scene: ProviderScene, *, stream: bool) -> None:
    """Header and receipt say where the request went; usage and money are those that the provider reports."""
    status, text, head = await scene.post(chat_body(stream=stream))
    assert status == 200, text
    assert content_of(text).strip() == scene.openai.text
    assert head["x-hearth-providers"] == "acme/eu"
    receipt = await scene.receipt(head["x-hearth-request-id"])
    assert receipt["providers"] == ["acme/eu/cloud"]
    assert receipt["usage"] == {"input_tokens": 11, "output_tokens": 5, "cached_input_tokens": None}
    metrics = await scene.metrics()
    assert metrics['hearth_provider_requests_total{endpoint="acme-eu",provider="acme",region="eu"}'] >= 1


async def test_only_listed_fields_and_headers_go_out(scene: ProviderScene) -> None:
    """Not the user, not metadata, not the gateway's or the trace's headers; the provider's own name of the model."""
    body = chat_body(user="ann", metadata={"team": "x"}, cache_salt="salt", priority=3, hearth={}, temperature=0.5)
    body["messages"][0]["name"] = "ann"
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    status, text, _ = await scene.post(
        body, traceparent=trace, x_request_id="mine", x_hearth_ttft_ms="60000", x_session_id="talk"
    )
    assert status == 200, text
    received = scene.openai.received[-1]
    assert received.body == {
        "model": "acme-large",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 24,
        "temperature": 0.5,
    }
    assert set(received.headers) == {"host", "accept", "content-type", "content-length", "authorization"}
    assert received.headers["authorization"] == "Bearer sk-provider"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("calls_tool", [True, False])
async def test_a_chat_is_answered_by_anthropics_api(scene: ProviderScene, *, stream: bool, calls_tool: bool) -> None:
    """The request is translated, the answer back: text, tool calls, usage with cached tokens, reasons."""
    scene.anthropic.calls_tool = calls_tool
    more: dict[str, Any] = {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
    body = chat_body(model="sonnet", tools=[TOOL], stop=["END"], **more)
    body["messages"].insert(0, {"role": "system", "content": "Be brief."})
    status, text, head = await scene.post(body)
    assert status == 200, text
    received = scene.anthropic.received[-1]
    assert received.path == "/v1/messages"
    assert received.headers["x-api-key"] == "sk-ant"
    assert received.headers["anthropic-version"] == "2023-06-01"
    assert received.body["system"] == "Be brief."
    assert received.body["max_tokens"] == 24
    assert received.body["tools"][0]["name"] == "f"
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    reason = "tool_calls" if calls_tool else "stop"
    if stream:
        assert text.endswith("data: [DONE]\n\n")
        assert events[-1]["usage"]["prompt_tokens"] == 11
        assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == reason
        calls = [
            call for event in events if event["choices"] for call in event["choices"][0]["delta"].get("tool_calls", ())
        ]
        assert "".join(call["function"]["arguments"] for call in calls) == ('{"a":1}' if calls_tool else "")
    else:
        answer = json.loads(text)
        assert answer["choices"][0]["finish_reason"] == reason
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert content_of(text).strip() == scene.anthropic.text
    receipt = await scene.receipt(head["x-hearth-request-id"])
    assert receipt["usage"] == {"input_tokens": 11, "output_tokens": 5, "cached_input_tokens": 2}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("calls_tool", [True, False])
async def test_a_message_is_answered_by_openais_api(scene: ProviderScene, *, stream: bool, calls_tool: bool) -> None:
    """The other way round: a client of Anthropic's API and an OpenAI-compatible endpoint."""
    scene.openai.calls_tool = calls_tool
    tool = {"name": "f", "input_schema": {"type": "object"}}
    body = chat_body(stream=stream, tools=[tool], system="Be brief.", stop_sequences=["END"])
    status, text, head = await scene.post(body, path="/v1/messages")
    scene.openai.calls_tool = False
    assert status == 200, text
    received = scene.openai.received[-1].body
    assert received["messages"][0] == {"role": "system", "content": "Be brief."}
    assert received["tools"][0]["function"]["name"] == "f"
    if stream:
        events = [json.loads(line.partition("data: ")[2]) for line in text.split("\n\n") if "data: " in line]
        assert [event["type"] for event in (events[0], events[-2], events[-1])] == [
            *("message_start", "message_delta", "message_stop")
        ]
        assert events[-2]["delta"]["stop_reason"] == ("tool_use" if calls_tool else "end_turn")
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        generated = "".join(delta.get("text", "") + delta.get("partial_json", "") for delta in deltas)
        assert generated.strip() == ('{"a":1}' if calls_tool else scene.openai.text)
    else:
        [block] = json.loads(text)["content"]
        assert block.get("input", block.get("text")) == ({"a": 1} if calls_tool else scene.openai.text)
    assert (await scene.receipt(head["x-hearth-request-id"]))["usage"]["output_tokens"] == 5


@pytest.mark.parametrize("tenant", ["denied", "elsewhere", "bound"])
async def test_a_tenant_without_a_grant_reaches_no_provider(scene: ProviderScene, tenant: str) -> None:
    """Not directly, not by a cascade, whose local model then answers, and the model is not listed."""
    before = len(scene.openai.received)
    status, text, head = await scene.post(chat_body(CANARY), tenant)
    assert (status, head["x-hearth-reason"]) == (
        (403, "region_not_allowed") if tenant == "bound" else (403, "provider_not_allowed")
    ), text
    if tenant != "bound":
        for model in ("auto", "fallback"):
            status, text, head = await scene.post(chat_body(CANARY, model, stream=True), tenant)
            assert (status, head["x-hearth-cascade-model"]) == (200, "small"), text
            assert "x-hearth-providers" not in head
    assert len(scene.openai.received) == before
    assert CANARY.encode() not in scene.openai.all_bytes()
    head = {"authorization": f"Bearer sk-{tenant}"}
    async with scene.session.get(scene.gateway.at("traffic", "/v1/models"), headers=head) as answer:
        assert "cloud" not in [each["id"] for each in (await answer.json())["data"]]


async def test_a_client_may_keep_a_request_within_the_fleet(scene: ProviderScene) -> None:
    """By a header, which no policy can widen."""
    before = len(scene.openai.received)
    _, _, head = await scene.post(chat_body(model="auto"), x_hearth_local_only="true")
    assert head["x-hearth-cascade-model"] == "small"
    status, _, head = await scene.post(chat_body(), x_hearth_local_only="true")
    assert (status, head["x-hearth-reason"]) == (403, "provider_not_allowed")
    assert len(scene.openai.received) == before


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cascade_escalates_to_a_provider(scene: ProviderScene, *, stream: bool) -> None:
    """The local answer is not good enough: the client sees the provider's, and what the fleet did is on the receipt."""
    status, text, head = await scene.post(chat_body(model="auto", stream=stream))
    assert status == 200, text
    assert content_of(text).strip() == scene.openai.text
    assert (head["x-hearth-cascade-model"], head["x-hearth-providers"]) == ("cloud", "acme/eu")
    receipt = await scene.receipt(head["x-hearth-request-id"])
    assert [step["result"] for step in receipt["cascade"]["steps"]] == ["escalated", "unjudged"]
    assert receipt["providers"] == ["acme/eu/cloud"]
    assert b"logprobs" not in scene.openai.received[-1].raw


async def test_money_is_reserved_before_anything_is_sent(scene: ProviderScene) -> None:
    """A request whose worst case exceeds what is left stays within the fleet; real usage is settled after each."""
    before = len(scene.openai.received)
    status, text, head = await scene.post(chat_body(max_tokens=2000), "poor")
    assert (status, head["x-hearth-reason"]) == (429, "provider_limit"), text
    assert len(scene.openai.received) == before
    statuses = [(await scene.post(chat_body(max_tokens=40), "poor"))[0] for _ in range(16)]
    # 31 millionths each (11 input tokens, 5 output), while 40 tokens and the prompt fit.
    assert statuses.count(200) in range(8, 12)
    assert statuses == sorted(statuses)
    _, _, head = await scene.post(chat_body(model="auto", max_tokens=2000), "poor")
    assert head["x-hearth-cascade-model"] == "small"


async def test_the_share_of_requests_that_leave_is_capped(scene: ProviderScene) -> None:
    """At most the tenant's share of its requests is sent, the others are answered by the fleet."""
    sent = 0
    for number in range(1, 31):
        status, text, head = await scene.post(chat_body(model="auto"), "rare")
        assert status == 200, text
        sent += "x-hearth-providers" in head
        assert sent <= 0.2 * number + 1
    assert sent >= 4


async def test_one_switch_stops_everything(scene: ProviderScene) -> None:
    """By the admin port: nothing goes out any more, cascades are answered by the fleet; and back."""
    assert (await scene.admin("/providers/stop"))["stopped"] is True
    before = len(scene.openai.received)
    status, _, head = await scene.post(chat_body())
    assert (status, head["x-hearth-reason"]) == (503, "no_pod_ready")
    _, _, head = await scene.post(chat_body(model="auto"))
    assert head["x-hearth-cascade-model"] == "small"
    assert len(scene.openai.received) == before
    assert (await scene.admin("/providers/start"))["stopped"] is False
    assert (await scene.post(chat_body()))[0] == 200


async def test_no_key_is_shown_or_logged(scene: ProviderScene) -> None:
    """Neither the one from the environment nor the one from a file."""
    async with scene.session.get(scene.gateway.at("admin", "/config")) as answer:
        shown = await answer.text()
    assert "acme-eu" in shown
    for key in ("sk-provider", "sk-ant"):
        assert key not in shown
        assert key not in json.dumps(scene.gateway.lines)
