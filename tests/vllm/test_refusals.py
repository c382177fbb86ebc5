"""Every no that a client can get, as the SDKs understand it: class, code, whose fault, and whether to come again.

How often a client asks is counted on its own connection; that it waits as it was told is the SDK's affair.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.conformance.measures import until
from tests.conformance.subject import COMPLETIONS, Subject
from tests.conformance.wire import spell
from tests.vllm.gateways import Gateway, in_front
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod

SMOL = "smollm2"
TINY = "tinyqwen"
KEY = "a key that only its owner knows"

HELLO: Any = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
LONG: Any = {"messages": [{"role": "user", "content": "sea " * (CONTEXT_TOKENS + 100)}], "max_tokens": 2}

MOST_AT_ONCE = 4
"""Requests that the terse pod takes."""

LIMITED = """
limits: {max_body_bytes: 65536, max_total_body_bytes: 16384}
"""


class Counted:
    """Both SDKs at one gateway, and the statuses that each of their attempts was answered with."""

    def __init__(self, url: str, key: str = "none", retries: int = 2) -> None:
        self.statuses: list[int] = []
        hooks: Any = {"response": [lambda answer: self.statuses.append(answer.status_code)]}
        self.openai = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key=key,
            max_retries=retries,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks),
        )
        self.anthropic = anthropic.Anthropic(
            base_url=url,
            api_key=key,
            max_retries=retries,
            http_client=anthropic.DefaultHttpxClient(event_hooks=hooks),
        )

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()


@pytest.fixture
def clients() -> Iterator[Callable[..., Counted]]:
    """Makes clients, and closes them."""
    with contextlib.ExitStack() as made:

        def make(url: str, **fields: Any) -> Counted:
            counted = Counted(url, **fields)
            made.callback(counted.close)
            return counted

        yield make


Make = Callable[..., Counted]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(pods: tuple[Pod, ...], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway with keys and with narrow limits."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (folder / "policy.yaml").write_text(
        f"auth: {{keys: {{search: ['{digest}']}}}}\ntenants: {{search: {{models: [{SMOL}]}}}}\n"
    )
    (folder / "hearth.yaml").write_text(LIMITED)
    flags = ("--policy", str(folder / "policy.yaml"), "--config", str(folder / "hearth.yaml"))
    async with in_front([pod.url for pod in pods], *flags) as started:
        yield started


def assert_openai(error: openai.APIStatusError, code: str, fault: str, *, hopeless: bool) -> None:
    assert error.code == code
    assert error.message
    assert error.response.headers["x-hearth-fault"] == fault
    assert error.response.headers.get("x-should-retry") == ("false" if hopeless else None)


def assert_anthropic(error: anthropic.APIStatusError, kind: str) -> None:
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.body["error"]["type"] == kind
    assert error.body["error"]["message"]
    assert error.body["request_id"] == error.response.headers["x-hearth-request-id"]


# -- the client's fault: said once, never asked again ------------------------------------------------------------------


def test_bad_requests(gateway: Gateway, clients: Make) -> None:
    """400 for what no engine could do, whether the gateway or the pod noticed it; the field is named."""
    client = clients(gateway.url)
    with pytest.raises(openai.BadRequestError) as caught:
        client.openai.chat.completions.create(model=SMOL, **HELLO | {"messages": "Hello"})
    assert caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as caught:
        client.openai.chat.completions.create(model=SMOL, **HELLO, temperature=-1)
    assert caught.value.param == "temperature"
    assert isinstance(caught.value.code, str)
    with pytest.raises(anthropic.BadRequestError) as rejected:
        client.anthropic.messages.create(model=SMOL, **HELLO | {"messages": []})
    assert_anthropic(rejected.value, "invalid_request_error")
    assert client.statuses == [400, 400, 400]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(gateway: Gateway, clients: Make, stream: bool) -> None:
    """The code that agents look for to shorten their conversation."""
    client = clients(gateway.url)
    with pytest.raises(openai.BadRequestError) as caught:
        client.openai.chat.completions.create(model=SMOL, **LONG, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length" in caught.value.message
    with pytest.raises(anthropic.BadRequestError) as rejected:
        client.anthropic.messages.create(model=SMOL, **LONG, stream=stream)
    assert_anthropic(rejected.value, "invalid_request_error")
    assert client.statuses == [400, 400]


def test_an_unknown_model(gateway: Gateway, clients: Make) -> None:
    """404 by its usual code."""
    client = clients(gateway.url)
    with pytest.raises(openai.NotFoundError) as caught:
        client.openai.chat.completions.create(model="nobody", **HELLO)
    assert_openai(caught.value, "model_not_found", "client", hopeless=True)
    assert caught.value.param == "model"
    with pytest.raises(anthropic.NotFoundError) as rejected:
        client.anthropic.messages.create(model="nobody", **HELLO)
    assert_anthropic(rejected.value, "not_found_error")
    assert client.statuses == [404, 404]


def test_an_unknown_path(gateway: Gateway, clients: Make) -> None:
    """What vLLM does not serve is refused by us, and never forwarded."""
    client = clients(gateway.url)
    with pytest.raises(openai.NotFoundError) as caught:
        client.openai.images.generate(prompt="A ship.", model=SMOL)
    assert_openai(caught.value, "unknown_url", "client", hopeless=True)
    assert "x-hearth-request-id" not in caught.value.response.headers, "a receipt that nobody wrote is not promised"
    assert client.statuses == [404]


def test_another_media_type(gateway: Gateway, clients: Make) -> None:
    """415, where vLLM says 400."""
    client = clients(gateway.url)
    with pytest.raises(openai.APIStatusError) as caught:
        client.openai.chat.completions.create(model=SMOL, **HELLO, extra_headers={"Content-Type": "text/plain"})
    assert caught.value.status_code == 415
    assert_openai(caught.value, "unsupported_media_type", "client", hopeless=True)
    assert client.statuses == [415]


def test_a_wrong_key(guarded: Gateway, clients: Make) -> None:
    """401 to both clients, each of which sends its key in its own header."""
    client = clients(guarded.url, key="not it")
    with pytest.raises(openai.AuthenticationError) as caught:
        client.openai.chat.completions.create(model=SMOL, **HELLO)
    assert_openai(caught.value, "invalid_api_key", "client", hopeless=True)
    assert guarded.receipt(caught.value.response.headers["x-hearth-request-id"]).status == 401
    with pytest.raises(anthropic.AuthenticationError) as rejected:
        client.anthropic.messages.create(model=SMOL, **HELLO)
    assert_anthropic(rejected.value, "authentication_error")
    with pytest.raises(openai.AuthenticationError):
        client.openai.models.list()
    assert client.statuses == [401, 401, 401]


def test_the_right_key(guarded: Gateway, clients: Make) -> None:
    """Its owner is served, and told of the models that are the owner's."""
    client = clients(guarded.url, key=KEY)
    assert client.openai.chat.completions.create(model=SMOL, **HELLO).choices
    assert client.anthropic.messages.create(model=SMOL, **HELLO).content
    assert [model.id for model in client.openai.models.list()] == [SMOL]


def test_a_body_that_is_too_large(guarded: Gateway, clients: Make) -> None:
    """413 before it is read to its end."""
    client = clients(guarded.url, key=KEY)
    large: Any = {"messages": [{"role": "user", "content": "x" * 70_000}], "max_tokens": 2}
    with pytest.raises(openai.APIStatusError) as caught:
        client.openai.chat.completions.create(model=SMOL, **large)
    assert caught.value.status_code == 413
    assert_openai(caught.value, "request_too_large", "client", hopeless=True)
    with pytest.raises(anthropic.APIStatusError) as rejected:
        client.anthropic.messages.create(model=SMOL, **large)
    assert rejected.value.status_code == 413
    assert_anthropic(rejected.value, "request_too_large")
    assert client.statuses == [413, 413]


# -- not the client's fault: asked again, as often as the client will --------------------------------------------------


def test_a_gateway_that_is_full(guarded: Gateway, clients: Make) -> None:
    """429 with a hint of when to come again; the client comes again, until it has had enough."""
    client = clients(guarded.url, key=KEY, retries=1)
    much: Any = {"messages": [{"role": "user", "content": "x" * 20_000}], "max_tokens": 2}
    with pytest.raises(openai.RateLimitError) as caught:
        client.openai.chat.completions.create(model=SMOL, **much)
    assert_openai(caught.value, "slow_down", "gateway", hopeless=False)
    assert caught.value.response.headers["retry-after"] == "1"
    assert client.statuses == [429, 429]
    with pytest.raises(anthropic.RateLimitError) as rejected:
        client.anthropic.messages.create(model=SMOL, **much)
    assert_anthropic(rejected.value, "rate_limit_error")
    assert client.statuses == [429] * 4


def subject(pod: Pod) -> Subject:
    return Subject(pod.url, pod.model, BLOCK_TOKENS, CONTEXT_TOKENS)


@contextlib.asynccontextmanager
async def filled(pod: Pod) -> AsyncIterator[asyncio.StreamWriter]:
    """A pod that has as much to do as it takes, until the connection is closed."""
    asks = subject(pod)
    # Each of several answers to one prompt counts as a request.
    requested = asks.request(
        COMPLETIONS, tokens=CONTEXT_TOKENS - 100, n=MOST_AT_ONCE, temperature=1, stream=True, ignore_eos=True
    )
    reader, writer = await asks.connect()
    try:
        writer.write(spell("POST", COMPLETIONS, requested, {"Content-Type": "application/json"}))
        await reader.readuntil(b"\n\n")
        yield writer
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
def test_a_pod_that_is_full(gateway: Gateway, clients: Make, terse_pod: Pod, stream: bool) -> None:
    """503 with a hint of when to come again, streamed or not; the client comes again, until it has had enough."""
    client = clients(gateway.url, retries=1)
    with pytest.raises(openai.InternalServerError) as caught:
        client.openai.chat.completions.create(model=terse_pod.model, **HELLO, n=MOST_AT_ONCE + 1, stream=stream)
    assert caught.value.status_code == 503
    assert_openai(caught.value, "server_is_overloaded", "pod", hopeless=False)
    assert caught.value.response.headers["retry-after"] == "1"
    assert client.statuses == [503, 503]
    assert gateway.pod(terse_pod.url)["breaker"] == {"state": "closed", "failures": 0, "open_count": 0}, (
        "busy is not broken"
    )


@dataclass(slots=True)
class Watch:
    """What a client is told. At the first answer the crowd before it leaves, and the client hears it when all are gone:
    a busy machine may take longer for that than the client waits before it comes again.
    """

    pod: Pod
    statuses: list[int] = field(default_factory=list)
    crowd: asyncio.StreamWriter | None = None

    async def note(self, answer: Any) -> None:
        self.statuses.append(answer.status_code)
        if self.crowd is not None:
            self.crowd.close()
            await until(subject(self.pod), "num_requests_running", 0)


async def test_a_pod_that_was_full(gateway: Gateway, terse_pod: Pod) -> None:
    """Who comes again when told to is served, once there is room."""
    watch = Watch(terse_pod)
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1",
        api_key="none",
        max_retries=3,
        http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [watch.note]}),
    ) as client:
        # Its first request imports half of the client, which may take longer than the crowd stays.
        await client.chat.completions.create(model=terse_pod.model, **HELLO)
        async with filled(terse_pod) as watch.crowd:
            answer = await client.chat.completions.create(model=terse_pod.model, **HELLO)
    assert answer.choices
    assert watch.statuses == [200, 503, 200]


async def test_a_pod_that_was_full_for_anthropics_client(gateway: Gateway, terse_pod: Pod) -> None:
    """The same, told as 529."""
    watch = Watch(terse_pod)
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url,
        api_key="none",
        max_retries=3,
        http_client=anthropic.DefaultAsyncHttpxClient(event_hooks={"response": [watch.note]}),
    ) as client:
        await client.messages.create(model=terse_pod.model, **HELLO)
        async with filled(terse_pod) as watch.crowd:
            answer = await client.messages.create(model=terse_pod.model, **HELLO)
    assert answer.content
    assert watch.statuses == [200, 529, 200]
