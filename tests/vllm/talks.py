"""A conversation as each API spells it: what is asked in a turn, and what of the answer the next turn repeats.

Written against the wire and not against an SDK, so that the four APIs read alike. Knows no gateway: a talk is had with
whatever `Subject` it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.answers import prompt_and_cached
from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject
from tests.conformance.wire import Exchange


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, streamed or not."""

    receipt_id: str
    text: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Talk:
    """A conversation under way. `history` is what its next request will repeat, in the form of its API."""

    subject: Subject
    path: str
    fields: dict[str, Any] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, words: str, *, stream: bool, tokens: int = 24) -> Turn:
        """Ask the next thing, and remember the answer."""
        history = SAY[self.path](words)
        self.history.append(history)
        if stream and self.path in (CHAT, COMPLETIONS):
            requested = self._request(tokens) | {"stream": True, "stream_options": {"include_usage": True}}
        else:
            requested = self._request(tokens) | {"stream": stream}
        exchange = await self.subject.post(self.path, requested, self.headers)
        assert exchange.status == 200, exchange.body
        assert exchange.is_whole
        answer = STREAMED[self.path](exchange) if stream else exchange.json()
        prompt_tokens, cached_tokens = prompt_and_cached(self.path, answer)
        text, repeated = HEARD[self.path](answer)
        self.history.append(repeated)
        return Turn(exchange.headers["x-hearth-request-id"], text, prompt_tokens, cached_tokens)

    def _request(self, tokens: int) -> dict[str, Any]:
        requested: dict[str, Any] = {"model": self.subject.model, "temperature": 0}
        match self.path:
            case "/v1/completions":
                requested |= {"prompt": "".join(self.history), "max_tokens": tokens}
            case "/v1/responses":
                requested |= {"input": self.history, "max_output_tokens": tokens}
            case _:
                requested |= {"messages": self.history, "max_tokens": tokens}
        return requested | self.fields


def _message(words: str) -> Any:
    return {"role": "user", "content": words}


SAY: dict[str, Callable[[str], Any]] = {
    CHAT: _message,
    COMPLETIONS: str,
    RESPONSES: _message,
    MESSAGES: lambda words: {"role": "user", "content": [{"type": "text", "text": words}]},
}
"""How words are put into the next request."""


# -- what an answer says, and what of it the next turn repeats ---------------------------------------------------------


def _hear_chat(answer: Any) -> tuple[str, Any]:
    message = answer["choices"][0]["message"]
    repeated = {"role": "assistant", "content": message["content"]}
    if calls := message.get("tool_calls"):
        repeated["tool_calls"] = calls
    return message["content"] or "", repeated


def _hear_completion(answer: Any) -> tuple[str, Any]:
    text = answer["choices"][0]["text"]
    return text, text


def _hear_response(answer: Any) -> tuple[str, Any]:
    (message,) = answer["output"]
    text = message["content"][0]["text"]
    return text, {"role": "assistant", "content": text}


def _hear_message(answer: Any) -> tuple[str, Any]:
    return answer["content"][0]["text"], {"role": "assistant", "content": answer["content"]}


HEARD: dict[str, Callable[[Any], tuple[str, Any]]] = {
    CHAT: _hear_chat,
    COMPLETIONS: _hear_completion,
    RESPONSES: _hear_response,
    MESSAGES: _hear_message,
}


# -- a stream put together as the answer it would have been ------------------------------------------------------------


def _gather_chat(exchange: Exchange) -> Any:
    *values, usage, done = exchange.values()
    assert done is None
    message: dict[str, Any] = {"content": None}
    for delta in (choice["delta"] for value in values for choice in value["choices"]):
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for piece in delta.get("tool_calls") or ():
            _add_call(message.setdefault("tool_calls", []), piece)
    return {"choices": [{"message": message}], "usage": usage["usage"]}


def _add_call(calls: list[Any], piece: Any) -> None:
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
    function = calls[piece["index"]]["function"]
    for name, more in piece["function"].items():
        function[name] += more or ""


def _gather_completion(exchange: Exchange) -> Any:
    *values, usage, done = exchange.values()
    assert done is None
    text = "".join(choice["text"] for value in values for choice in value["choices"])
    return {"choices": [{"text": text}], "usage": usage["usage"]}


def _gather_response(exchange: Exchange) -> Any:
    return exchange.values()[-1]["response"]


def _gather_message(exchange: Exchange) -> Any:
    values = exchange.values()
    text = "".join(value["delta"]["text"] for value in values if value["type"] == "content_block_delta")
    return {"content": [{"type": "text", "text": text}], "usage": values[-2]["usage"]}


STREAMED: dict[str, Callable[[Exchange], Any]] = {
    CHAT: _gather_chat,
    COMPLETIONS: _gather_completion,
    RESPONSES: _gather_response,
    MESSAGES: _gather_message,
}
