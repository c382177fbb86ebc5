"""OpenAI's own Python client through the gateway: what it gets is what the pod would have told it directly."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.vllm.gateways import Gateway
from tests.vllm.pods import Pod

SMOL = "smollm2"
TINY = "tinyqwen"
VECTORS = "tinyqwen-embed"

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}


def question(words: str = "What is the capital of France?") -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": words}]


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def direct(pods: tuple[Pod, ...]) -> Iterator[openai.OpenAI]:
    """The same client without the gateway."""
    with openai.OpenAI(base_url=f"{pods[0].url}/v1", api_key="none", max_retries=0) as made:
        yield made


def as_told(answer: Any) -> Any:
    """An answer without what is the pod's own or the moment's."""
    reported = answer.to_dict()
    # vLLM fingerprints its configuration, port included; what was warm depends on who asked before.
    for name in ("id", "created", "created_at", "completed_at", "system_fingerprint", "usage"):
        reported.pop(name, None)
    return reported


# -- chat --------------------------------------------------------------------------------------------------------------


def test_a_unary_answer_is_the_pods_own(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """Every field, at temperature 0."""
    reported = [
        as_told(requested.chat.completions.create(model=SMOL, messages=question(), temperature=0, max_tokens=16))
        for requested in (client, direct)
    ]
    assert reported[0] == reported[1]
    assert "Paris" in reported[0]["choices"][0]["message"]["content"]


def test_a_stream_is_the_pods_own(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """Role, text and finish reason; no event of usage that nobody asked for."""
    texts, ends = [], []
    for requested in (client, direct):
        with requested.chat.completions.create(
            model=SMOL, messages=question(), temperature=0, max_tokens=16, stream=True
        ) as stream:
            chunks = list(stream)
        assert all(chunk.usage is None for chunk in chunks)
        assert all(len(chunk.choices) == 1 for chunk in chunks)
        assert chunks[0].choices[0].delta.role == "assistant"
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
        ends.append(chunks[-1].choices[0].finish_reason)
    assert texts[0] == texts[1] != ""
    assert ends[0] == ends[1]


def test_usage_is_sent_on_request(client: openai.OpenAI) -> None:
    """The last chunk, with what was warm."""
    with client.chat.completions.create(
        model=SMOL,
        messages=question(),
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        *chunks, last = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 4
    assert last.usage.prompt_tokens_details is not None


def test_running_usage_is_sent_on_request(client: openai.OpenAI) -> None:
    """An extension of vLLM: usage in every chunk, and once more at the end."""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    with client.chat.completions.create(
        model=SMOL, messages=question(), max_tokens=4, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage][-1] == 4
    assert all(chunk.usage for chunk in chunks)


def test_the_stream_that_the_client_puts_together(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """Its event interface ends with the same completion."""
    contents = []
    for requested in (client, direct):
        with requested.chat.completions.stream(model=SMOL, messages=question(), temperature=0, max_tokens=12) as stream:
            contents.append(stream.get_final_completion().choices[0].message.content)
    assert contents[0] == contents[1]


async def test_the_async_client(async_client: openai.AsyncOpenAI) -> None:
    """Several at once, streamed and not, each with its own answer."""

    async def streamed(words: str) -> str:
        stream = await async_client.chat.completions.create(
            model=TINY, messages=question(words), temperature=0, max_tokens=12, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def complete(words: str) -> str:
        answer = await async_client.chat.completions.create(
            model=TINY, messages=question(words), temperature=0, max_tokens=12
        )
        return answer.choices[0].message.content or ""

    words = [f"{secrets.token_hex(4)} tell me" for _ in range(3)]
    for one in words:
        reported = await asyncio.gather(streamed(one), complete(one), streamed(one))
        assert len(set(reported)) == 1
        assert reported[0]


def test_raw_headers(client: openai.OpenAI, gateway: Gateway) -> None:
    """The client's request id comes back, and the receipt has a name of its own."""
    raw = client.chat.completions.with_raw_response.create(
        model=SMOL, messages=question(), max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.request_id == "mine-1"
    receipt_id = raw.headers["x-hearth-request-id"]
    assert receipt_id != "mine-1"
    assert raw.parse().id == f"chatcmpl-{receipt_id}", "the engine got an id of ours"
    assert gateway.receipt(receipt_id).status == 200


def test_raw_headers_of_a_stream(client: openai.OpenAI, gateway: Gateway) -> None:
    """The same before the first event."""
    with client.chat.completions.with_streaming_response.create(
        model=SMOL, messages=question(), max_tokens=2, stream=True, extra_headers={"X-Request-Id": "mine-2"}
    ) as raw:
        assert raw.headers["x-request-id"] == "mine-2"
        receipt_id = raw.headers["x-hearth-request-id"]
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert list(raw.iter_lines())[-2] == "data: [DONE]"
    assert gateway.receipt(receipt_id).status == 200


# -- tools, JSON, logprobs ---------------------------------------------------------------------------------------------

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}


def test_tools(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """A tool call is the pod's own, and its result is taken."""
    messages: list[Any] = [*question("What is the weather like in Paris?")]
    calls: list[Any] = []
    for requested in (client, direct):
        answer = requested.chat.completions.create(
            model=SMOL,
            messages=messages,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            temperature=0,
            max_tokens=96,
        )
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        calls.append(call.function)
    assert calls[0] == calls[1]
    assert json.loads(calls[0].arguments)["place"] in {"Paris", "Rome"}
    reported = client.chat.completions.create(
        model=SMOL,
        messages=[
            *messages,
            {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": calls[0].to_dict()}]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "clear"}'},
        ],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=8,
    )
    assert reported.choices[0].message.content


def test_streamed_tools(client: openai.OpenAI) -> None:
    """The client puts the pieces of a call together."""
    with client.chat.completions.stream(
        model=SMOL,
        messages=question("What is the weather like in Rome?"),
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=96,
    ) as stream:
        answer = stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments)["place"] in {"Paris", "Rome"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}},
    ],
    ids=["json_object", "json_schema"],
)
def test_json_mode(client: openai.OpenAI, direct: openai.OpenAI, wanted: Any) -> None:
    """The format is the pod's to keep: it is passed on, and so is the answer."""
    contents = [
        requested.chat.completions.create(
            model=SMOL,
            messages=question("Describe Paris as JSON."),
            response_format=wanted,
            temperature=0,
            max_tokens=48,
        )
        .choices[0]
        .message.content
        for requested in (client, direct)
    ]
    assert contents[0] == contents[1]
    assert contents[0] is not None
    assert contents[0].lstrip().startswith("{")
    if wanted["type"] == "json_schema":
        assert set(json.loads(contents[0])) == {"city", "is_capital"}


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool) -> None:
    """Each token with its alternatives."""
    fields: Any = {"model": SMOL, "messages": question(), "temperature": 0, "max_tokens": 4}
    fields |= {"logprobs": True, "top_logprobs": 2}
    if stream:
        with client.chat.completions.create(**fields, stream=True) as chunks:
            reported = [chunk.choices[0].logprobs for chunk in chunks]
        tokens = [token for logprobs in reported if logprobs for token in logprobs.content or ()]
    else:
        logprobs = client.chat.completions.create(**fields).choices[0].logprobs
        assert logprobs is not None
        tokens = logprobs.content or []
    assert len(tokens) == 4
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)


# -- the other APIs ----------------------------------------------------------------------------------------------------


def test_completions(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """Whole and streamed, text and batches."""
    prompt = "The capital of France is"
    wholes = [
        requested.completions.create(model=SMOL, prompt=prompt, temperature=0, max_tokens=8)
        for requested in (client, direct)
    ]
    assert as_told(wholes[0]) == as_told(wholes[1])
    with client.completions.create(model=SMOL, prompt=prompt, temperature=0, max_tokens=8, stream=True) as stream:
        chunks = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].text for chunk in chunks) == wholes[0].choices[0].text
    batch = client.completions.create(model=SMOL, prompt=[prompt, "Once upon a time"], max_tokens=2, n=2)
    assert sorted(choice.index for choice in batch.choices) == [0, 1, 2, 3]


def test_embeddings(client: openai.OpenAI, embedding_pod: Pod) -> None:
    """Vectors by the model that makes them, as lists and as the base64 that the client asks for by itself."""
    texts = ["The sea is calm.", "Der Himmel ist blau."]
    packed = client.embeddings.create(model=VECTORS, input=texts)
    listed = client.embeddings.create(model=VECTORS, input=texts, encoding_format="float")
    assert [one.index for one in listed.data] == [0, 1]
    assert listed.usage.prompt_tokens > 0
    for left, right in zip(packed.data, listed.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding, rel=1e-3)
    with openai.OpenAI(base_url=f"{embedding_pod.url}/v1", api_key="none") as direct:
        own = direct.embeddings.create(model=VECTORS, input=texts, encoding_format="float")
    assert [one.embedding for one in own.data] == [one.embedding for one in listed.data]


def test_embeddings_of_a_model_that_makes_none(client: openai.OpenAI) -> None:
    """The model is to blame, and named; so is one that makes nothing else."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model=SMOL, input="The sea.")
    assert (caught.value.code, caught.value.param) == ("unsupported_api", "model")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=VECTORS, messages=question())


def test_responses(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """Whole and streamed alike."""
    texts = [
        requested.responses.create(
            model=SMOL, input="What is the capital of France?", temperature=0, max_output_tokens=12
        )
        for requested in (client, direct)
    ]
    assert texts[0].output_text == texts[1].output_text != ""
    with client.responses.create(
        model=SMOL, input="What is the capital of France?", temperature=0, max_output_tokens=12, stream=True
    ) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == texts[0].output_text
    assert last.response.usage is not None


def test_a_response_is_continued_where_it_is_stored(client: openai.OpenAI, gateway: Gateway) -> None:
    """`previous_response_id` goes to the pod that has it, whatever was asked in between; so does getting it."""
    for number in range(4):
        raw = client.responses.with_raw_response.create(
            model=SMOL, input=f"My name is Ada, number {number}. What is yours?", temperature=0, max_output_tokens=12
        )
        first = raw.parse()
        home = gateway.receipt(raw.headers["x-hearth-request-id"]).pod
        client.responses.create(model=SMOL, input=secrets.token_hex(64), max_output_tokens=2)
        continued = client.responses.with_raw_response.create(
            model=SMOL, input="What is my name?", previous_response_id=first.id, temperature=0, max_output_tokens=8
        )
        assert gateway.receipt(continued.headers["x-hearth-request-id"]).pods == (home,)
        second = continued.parse()
        assert second.previous_response_id == first.id
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens, "the whole conversation was computed"
        assert client.responses.retrieve(first.id).output_text == first.output_text


def test_an_unknown_previous_response(client: openai.OpenAI) -> None:
    """The pod's own words, understood as its kind of error."""
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=SMOL, input="And?", previous_response_id="resp_unknown")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_unknown")


def test_models(client: openai.OpenAI) -> None:
    """All models of all pods, each once."""
    assert sorted(model.id for model in client.models.list()) == [SMOL, TINY, VECTORS]
    assert client.models.retrieve(SMOL).id == SMOL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"
