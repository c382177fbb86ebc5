"""Bodies and answers as they stand on the wire, for the tests of reading: vLLM's words, written by `json`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from routing.reading import read_request
from routing.reading.requests import DECODERS
from routing.request import Api, Request

Json = dict[str, Any]


def canonical(api: Api, body: Json) -> bytes:
    """The canonical prompt of a body."""
    out: list[bytes] = []
    DECODERS[api].decode(json.dumps(body).encode())[0].write(out)
    return b"".join(out)


def request_of(api: Api, body: Json) -> Request:
    return read_request(api, json.dumps(body).encode(), request_id="req-1").request


@dataclass(frozen=True)
class Said:
    """What an engine generated: text and tool calls."""

    text: str
    calls: tuple[tuple[str, Json], ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not self.text and not self.calls


# Text as clients and engines write it: quotes, backslashes, line breaks, braces, other scripts, and our own marks
# as characters. No surrogates: JSON texts with those are refused.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ['"', "\\", '\\"', '","content":"', "data: [DONE]\n\n", "ÿþ", "\u2028", "\x00", "😀", '{"index":1}', "}]}"]
)
arguments = st.dictionaries(texts, texts | st.integers(-(2**53), 2**53) | st.booleans() | st.none(), max_size=3)
names = st.text("abcdefgh_", min_size=1, max_size=8)
sayings = st.builds(Said, texts, st.lists(st.tuples(names, arguments), max_size=2).map(tuple))


def cut(text: str, pieces: int) -> list[str]:
    """A text in so many pieces, as tokens come."""
    size = max(1, len(text) // pieces)
    return [text[at : at + size] for at in range(0, len(text), size)]


def sse(events: Sequence[Json | str], *, named: bool = False) -> bytes:
    lines = []
    for event in events:
        if isinstance(event, str):
            lines.append(f"data: {event}\n\n")
            continue
        head = f"event: {event['type']}\n" if named else ""
        lines.append(f"{head}data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n")
    return "".join(lines).encode()


# -- chat ----------------------------------------------------------------------------------------------------------


def chat_message(stated: Said) -> Json:
    """The assistant's message, as an engine answers it and as a client sends it back."""
    message: Json = {"role": "assistant", "content": stated.text or None}
    if stated.calls:
        message["tool_calls"] = [
            {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for at, (name, given) in enumerate(stated.calls)
        ]
    return message


def chat_answer(stated: Said) -> bytes:
    choice = {
        "index": 0,
        "message": chat_message(stated) | {"refusal": None, "reasoning": None},
        "finish_reason": "stop",
    }
    return json.dumps({"id": "chatcmpl-1", "choices": [choice], "usage": {"prompt_tokens": 1}}).encode()


def chat_event(delta: Json, *, index: int = 0, finish: str | None = None) -> Json:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def chat_stream(stated: Said, pieces: int = 3) -> bytes:
    events: list[Json | str] = [chat_event({"role": "assistant", "content": ""})]
    events += [chat_event({"content": piece}) for piece in cut(stated.text, pieces)]
    for at, (name, given) in enumerate(stated.calls):
        head = {"index": at, "id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": ""}}
        events.append(chat_event({"tool_calls": [head]}))
        for piece in cut(json.dumps(given), pieces):
            events.append(chat_event({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))
    events += [chat_event({"content": ""}, finish="stop"), {"id": "chatcmpl-1", "choices": [], "usage": {}}, "[DONE]"]
    return sse(events)


# -- completions ---------------------------------------------------------------------------------------------------


def completions_answer(text: str) -> bytes:
    return json.dumps({"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}).encode()


def completions_stream(text: str, pieces: int = 3) -> bytes:
    events: list[Json | str] = [
        {"id": "cmpl-1", "choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in cut(text, pieces)
    ]
    return sse([*events, "[DONE]"])


# -- responses -----------------------------------------------------------------------------------------------------


def response_items(stated: Said) -> list[Json]:
    items: list[Json] = []
    if stated.text:
        part: Json = {"type": "output_text", "text": stated.text, "annotations": [], "logprobs": None}
        items.append({"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]})
    for at, (name, given) in enumerate(stated.calls):
        call = {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "status": "completed"}
        items.append(call | {"name": name, "arguments": json.dumps(given)})
    return items


def response(stated: Said, status: str = "completed") -> Json:
    return {"id": "resp_1", "status": status, "output": response_items(stated), "usage": {"input_tokens": 1}}


def response_answer(stated: Said) -> bytes:
    return json.dumps(response(stated)).encode()


def response_stream(stated: Said, pieces: int = 3) -> bytes:
    begun: Json = {"id": "resp_1", "status": "in_progress", "output": [], "usage": None}
    events: list[Json | str] = [{"type": "response.created", "response": begun}]
    events += [{"type": "response.output_text.delta", "delta": piece} for piece in cut(stated.text, pieces)]
    return sse([*events, {"type": "response.completed", "response": response(stated)}], named=True)


# -- messages ------------------------------------------------------------------------------------------------------


def message_blocks(stated: Said) -> list[Json]:
    blocks: list[Json] = [{"type": "text", "text": stated.text}] if stated.text else []
    return blocks + [
        {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": given}
        for at, (name, given) in enumerate(stated.calls)
    ]


def message_answer(stated: Said) -> bytes:
    answer = {"id": "chatcmpl-1", "type": "message", "role": "assistant", "content": message_blocks(stated)}
    return json.dumps(answer | {"stop_reason": "end_turn", "usage": {"input_tokens": 1}}).encode()


def message_stream(stated: Said, pieces: int = 3) -> bytes:
    events: list[Json | str] = [{"type": "message_start", "message": {"id": "chatcmpl-1", "content": []}}]
    for at, block in enumerate(message_blocks(stated)):
        is_text = block["type"] == "text"
        empty = {"type": "text", "text": ""} if is_text else block | {"input": {}}
        events.append({"type": "content_block_start", "index": at, "content_block": empty})
        for piece in cut(block["text"] if is_text else json.dumps(block["input"]), pieces):
            delta = {"type": "text_delta", "text": piece} if is_text else {"type": "d", "partial_json": piece}
            events.append({"type": "content_block_delta", "index": at, "delta": delta})
        events.append({"type": "content_block_stop", "index": at})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}})
    return sse([*events, {"type": "message_stop"}], named=True)
