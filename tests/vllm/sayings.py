"""Streams as their own SDKs hear them, and questions whose answer no rounding changes: for runs that lose their pod.

An answer is the same wherever it is gone on with if the model is sure of each of its tokens by more than rounding moves
and if each beginning of it is read as the tokens that it was said in. Float32 pods round finely enough; `WALK` and
`BREAD` were chosen for the rest, and `is_steady` looks again, on whatever model and version is at hand.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject

WALK = "Describe a walk through an old harbour town in plain words."
"""A question; its answer of some hundred tokens ends by itself."""

BREAD = "Bread is made of flour, water, salt and yeast. First the baker"
"""A text to go on with."""

MOST_TOKENS = 120

LEAST_MARGIN = 1e-3
"""Between the likeliest token and the next, in nats; float32 moves them by some 1e-5."""

WELL_BEGUN = 8
"""Pieces; a dozen times as many are to come."""

MARGIN_OF = "top_logprobs"


@dataclass(slots=True)
class Heard:
    """One stream, as far as it has come. All but `receipt` must be as if nothing had happened."""

    pieces: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    usage: list[tuple[int, ...]] = field(default_factory=list)
    """Tokens of the prompt, however warm, and of the answer; in APIs that tell no ids, of both together.

    A busy engine puts several tokens into one event, and only their ids say how many: what was said before a cut and
    what came after it is told apart by them, and their sum without them.
    """
    ids: set[str] = field(default_factory=set)
    receipt: str = ""
    has_started: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, piece: str) -> None:
        self.pieces.append(piece)
        if len(self.pieces) >= WELL_BEGUN:
            self.has_started.set()

    @property
    def answer(self) -> Any:
        """What must be equal to an undisturbed run's."""
        return "".join(self.pieces), self.roles, self.ended, self.usage, len(self.ids)


@dataclass(frozen=True, slots=True)
class Clients:
    """Both SDKs, without retries of their own: what is lost stays lost."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic


@asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[Clients]:
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as other,
    ):
        yield Clients(one, other)


def count(received: Heard, usage: Any) -> None:
    """The usage of OpenAI's older APIs; the SDK says of completions that there always is one."""
    if usage is not None:
        received.usage.append((usage.prompt_tokens, usage.completion_tokens))


async def say_chat(clients: Clients, model: str, received: Heard) -> None:
    """Streamed chat."""
    stream = await clients.openai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": WALK}],
        max_tokens=MOST_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    received.receipt = stream.response.headers.get("x-hearth-request-id", "")
    async for chunk in stream:
        received.ids.add(chunk.id)
        count(received, chunk.usage)
        for choice in chunk.choices:
            received.roles += [choice.delta.role] if choice.delta.role else []
            received.ended += [choice.finish_reason] if choice.finish_reason else []
            if choice.delta.content:
                received.hear(choice.delta.content)


async def say_completion(clients: Clients, model: str, received: Heard) -> None:
    """A streamed completion."""
    stream = await clients.openai.completions.create(
        model=model,
        prompt=BREAD,
        max_tokens=MOST_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    received.receipt = stream.response.headers.get("x-hearth-request-id", "")
    async for chunk in stream:
        received.ids.add(chunk.id)
        count(received, chunk.usage)
        # The SDK says that each has a reason to end.
        choices: list[Any] = list(chunk.choices)
        for choice in choices:
            received.ended += [choice.finish_reason] if choice.finish_reason else []
            if choice.text:
                received.hear(choice.text)


async def say_message(clients: Clients, model: str, received: Heard) -> None:
    """A streamed message of Anthropic's API."""
    # The SDK knows no temperature any more; the engine does.
    stream = await clients.anthropic.messages.create(
        model=model,
        messages=[{"role": "user", "content": WALK}],
        max_tokens=MOST_TOKENS,
        stream=True,
        extra_body={"temperature": 0},
    )
    received.receipt = stream.response.headers.get("x-hearth-request-id", "")
    async for event in stream:
        match event.type:
            case "message_start":
                received.ids.add(event.message.id)
                received.roles.append(event.message.role)
            case "content_block_delta" if event.delta.type == "text_delta":
                received.hear(event.delta.text)
            case "message_delta":
                received.ended.append(str(event.delta.stop_reason))
                reported = event.usage
                warm = (reported.cache_read_input_tokens or 0) + (reported.cache_creation_input_tokens or 0)
                received.usage.append(((reported.input_tokens or 0) + warm + reported.output_tokens,))


async def say_response(clients: Clients, model: str, received: Heard) -> None:
    """A streamed response; at its end the whole text is told once more."""
    stream = await clients.openai.responses.create(
        model=model, input=WALK, max_output_tokens=MOST_TOKENS, temperature=0, stream=True
    )
    received.receipt = stream.response.headers.get("x-hearth-request-id", "")
    async for event in stream:
        match event.type:
            case "response.created":
                received.ids.add(event.response.id)
            case "response.output_text.delta":
                received.hear(event.delta)
            case "response.completed":
                received.ids.add(event.response.id)
                received.ended.append(str(event.response.status))
                assert event.response.usage is not None
                received.usage.append((event.response.usage.total_tokens,))
                assert event.response.output_text == "".join(received.pieces)


SAY: dict[str, Callable[[Clients, str, Heard], Any]] = {
    CHAT: say_chat,
    COMPLETIONS: say_completion,
    MESSAGES: say_message,
    RESPONSES: say_response,
}


async def heard_at(url: str, model: str, path: str) -> Heard:
    """A stream from its beginning to its end."""
    received = Heard()
    async with clients_of(url) as clients:
        await SAY[path](clients, model, received)
    return received


# -- whether an answer may be compared at all --------------------------------------------------------------------------


async def is_steady(pod: Subject) -> None:
    """Assert that both answers are such that no pod, and no place of a cut, may change a word of them."""
    await _chat_is_steady(pod)
    await _completion_is_steady(pod)


async def _chat_is_steady(pod: Subject) -> None:
    turn = {"role": "user", "content": WALK}
    requested: dict[str, Any] = {"messages": [turn], "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    *values, _ = (await pod.stream(CHAT, tokens=MOST_TOKENS, **requested)).values()
    stated, ids = "", list(values[0]["prompt_token_ids"])
    for choice in (choice for value in values[1:] for choice in value["choices"]):
        for entry in choice["logprobs"]["content"]:
            assert_sure([top["logprob"] for top in entry[MARGIN_OF]])
        stated, ids = stated + (choice["delta"].get("content") or ""), ids + choice["token_ids"]
        if choice["finish_reason"] is None:
            open_turn = {"messages": [turn, {"role": "assistant", "content": stated}]}
            going_on = {"continue_final_message": True, "add_generation_prompt": False}
            assert await tokens_of(pod, open_turn | going_on) == ids, stated[-40:]


async def _completion_is_steady(pod: Subject) -> None:
    requested: dict[str, Any] = {"prompt": BREAD, "return_token_ids": True, "logprobs": 2}
    *values, _ = (await pod.stream(COMPLETIONS, tokens=MOST_TOKENS, **requested)).values()
    stated, ids = BREAD, list(values[0]["choices"][0]["prompt_token_ids"])
    for choice in (choice for value in values for choice in value["choices"]):
        for tops in choice["logprobs"][MARGIN_OF]:
            assert_sure(list(tops.values()))
        stated, ids = stated + choice["text"], ids + choice["token_ids"]
        assert await tokens_of(pod, {"prompt": stated}) == ids, stated[-40:]


def assert_sure(logprobs: list[float]) -> None:
    first, second, *_ = sorted(logprobs, reverse=True)
    assert first - second > LEAST_MARGIN


async def tokens_of(pod: Subject, what: dict[str, Any]) -> Any:
    answer = await pod.post("/tokenize", {"model": pod.model, **what})
    return answer.json()["tokens"]
