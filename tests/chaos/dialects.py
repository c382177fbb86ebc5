"""The four APIs as the SDKs of OpenAI and Anthropic speak them: a request asked, and what is heard noted as it comes.

Does not retry and judges nothing: the SDKs do the one, clients.py the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.chaos.asked import Api, Asked, Heard
from tests.chaos.sdks import Sdks

MODEL = "tiny"


class Left(Exception):  # noqa: N818 - nothing went wrong
    """The client had heard enough."""


Note = Callable[[str | None], None]
"""Takes a piece of the text."""


async def listen(sdks: Sdks, asked: Asked, heard: Heard, note: Note) -> None:
    """Ask, and note the answer in `heard`. Raises what the SDK raises, and `Left`."""

    def take(piece: str | None) -> None:
        if piece:
            heard.pieces.append(piece)
            note(piece)
        if asked.is_streamed and asked.leaves_after is not None and len(heard.pieces) >= asked.leaves_after:
            raise Left

    await DIALECTS[asked.api](sdks, asked, heard, take)


async def _chat(sdks: Sdks, asked: Asked, heard: Heard, take: Note) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": _said(asked), "max_tokens": asked.most_tokens}
    create = sdks.openai.chat.completions.create
    if not asked.is_streamed:
        whole = await create(**body)
        take(whole.choices[0].message.content)
        heard.ended, heard.tokens = whole.choices[0].finish_reason, whole.usage.completion_tokens
        return
    async with await create(**body, stream=True, stream_options={"include_usage": True}) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                heard.ended = choice.finish_reason or heard.ended
                take(choice.delta.content)
            heard.tokens = chunk.usage.completion_tokens if chunk.usage else heard.tokens


async def _completions(sdks: Sdks, asked: Asked, heard: Heard, take: Note) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": asked.prompt, "max_tokens": asked.most_tokens}
    create = sdks.openai.completions.create
    if not asked.is_streamed:
        whole = await create(**body)
        take(whole.choices[0].text)
        heard.ended, heard.tokens = whole.choices[0].finish_reason, whole.usage.completion_tokens
        return
    async with await create(**body, stream=True, stream_options={"include_usage": True}) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                heard.ended = choice.finish_reason or heard.ended
                take(choice.text)
            heard.tokens = chunk.usage.completion_tokens if chunk.usage else heard.tokens


async def _responses(sdks: Sdks, asked: Asked, heard: Heard, take: Note) -> None:
    body: dict[str, Any] = {"model": MODEL, "input": asked.prompt, "max_output_tokens": asked.most_tokens}
    create = sdks.openai.responses.create
    if not asked.is_streamed:
        whole = await create(**body)
        take(whole.output_text)
        heard.ended, heard.tokens = whole.status, whole.usage.output_tokens
        return
    async with await create(**body, stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                take(event.delta)
            elif event.type in ("response.completed", "response.incomplete"):
                heard.ended, heard.tokens = event.response.status, event.response.usage.output_tokens


async def _messages(sdks: Sdks, asked: Asked, heard: Heard, take: Note) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": _said(asked), "max_tokens": asked.most_tokens}
    create = sdks.anthropic.messages.create
    if not asked.is_streamed:
        whole = await create(**body)
        take("".join(block.text for block in whole.content))
        heard.ended, heard.tokens = whole.stop_reason, whole.usage.output_tokens
        return
    async with await create(**body, stream=True) as stream:
        async for event in stream:
            if event.type == "content_block_delta":
                take(event.delta.text)
            elif event.type == "message_delta":
                heard.ended, heard.tokens = event.delta.stop_reason, event.usage.output_tokens


def _said(asked: Asked) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked.prompt}]


DIALECTS: Mapping[Api, Callable[[Sdks, Asked, Heard, Note], Awaitable[None]]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.RESPONSES: _responses,
    Api.MESSAGES: _messages,
}
