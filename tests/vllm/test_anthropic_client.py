"""Anthropic's own Python client through the gateway: what it gets is what the pod would have told it directly."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest

from tests.vllm.gateways import Gateway
from tests.vllm.pods import Pod

SMOL = "smollm2"

WEATHER: Any = {
    "name": "get_weather",
    "description": "What the weather is like in a place.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
}


def requested(words: str = "What is the capital of France?", **fields: Any) -> Any:
    """The fields of a question that is answered alike every time."""
    # The SDK knows no temperature any more; the engine does.
    usual = {"model": SMOL, "messages": [{"role": "user", "content": words}], "max_tokens": 16}
    return usual | {"extra_body": {"temperature": 0}} | fields


@pytest.fixture
def client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def direct(pods: tuple[Pod, ...]) -> Iterator[anthropic.Anthropic]:
    """The same client without the gateway."""
    with anthropic.Anthropic(base_url=pods[0].url, api_key="none", max_retries=0) as made:
        yield made


def test_a_unary_answer_is_the_pods_own(client: anthropic.Anthropic, direct: anthropic.Anthropic) -> None:
    """Every field but the id and what was warm."""
    answers = [one.messages.create(**requested()).to_dict() for one in (client, direct)]
    for answer in answers:
        del answer["id"], answer["usage"]
    assert answers[0] == answers[1]
    assert "Paris" in str(answers[0]["content"])


def test_a_stream_is_the_pods_own(client: anthropic.Anthropic, direct: anthropic.Anthropic) -> None:
    """Text as it comes, and the message that the client puts together, usage included."""
    texts = []
    for one in (client, direct):
        with one.messages.stream(**requested()) as stream:
            texts.append("".join(stream.text_stream))
            final = stream.get_final_message()
        assert final.stop_reason in {"end_turn", "max_tokens"}
        assert final.usage.output_tokens > 0
    assert texts[0] == texts[1] != ""


async def test_the_async_client(async_client: anthropic.AsyncAnthropic) -> None:
    """Streamed and not, with a system prompt and content blocks."""
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Name a city."}]}]
    fields = requested(system="You answer in one word.", messages=blocks)
    complete = await async_client.messages.create(**fields)
    async with async_client.messages.stream(**fields) as stream:
        text = "".join([piece async for piece in stream.text_stream])
    (reported,) = complete.content
    assert reported.type == "text"
    assert text == reported.text


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: anthropic.Anthropic, stream: bool) -> None:
    """A tool is used, and its result is taken."""
    fields = requested("What is the weather like in Paris?", tools=[WEATHER], max_tokens=160)
    fields["tool_choice"] = {"type": "tool", "name": "get_weather"}
    if stream:
        with client.messages.stream(**fields) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**fields)
    used: Any
    (used,) = [block for block in answer.content if block.type == "tool_use"]
    assert used.name == "get_weather"
    assert isinstance(used.input, dict)
    result: Any = {"type": "tool_result", "tool_use_id": used.id, "content": '{"sky": "clear"}'}
    follow: Any = [
        *fields["messages"],
        {"role": "assistant", "content": [used.to_dict()]},
        {"role": "user", "content": [result]},
    ]
    reported = client.messages.create(**fields | {"messages": follow, "tool_choice": {"type": "none"}})
    assert reported.content[0].type == "text"


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    """As many as the answer's usage tells."""
    counted = client.messages.count_tokens(model=SMOL, messages=requested()["messages"])
    usage = client.messages.create(**requested(max_tokens=1)).usage
    reported = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == reported


def test_raw_headers(client: anthropic.Anthropic, gateway: Gateway) -> None:
    """The client's request id comes back, and the receipt has a name of its own."""
    raw = client.messages.with_raw_response.create(**requested(max_tokens=2, extra_headers={"X-Request-Id": "mine-3"}))
    assert raw.headers["x-request-id"] == "mine-3"
    assert gateway.receipt(raw.headers["x-hearth-request-id"]).status == 200


def test_models(client: anthropic.Anthropic) -> None:
    """Its list of models is read as well."""
    assert SMOL in [model.id for model in client.models.list()]
