"""Bytes as vLLM sends them."""

from __future__ import annotations

import json
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 17:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def answer_bytes(body: Any, status: int = 200, **headers: str) -> bytes:
    """A whole answer with its length."""
    payload = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    fields = {"content-type": "application/json", "content-length": str(len(payload)), **headers}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(reported: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(reported, separators=(",", ":")).encode() + b"\n\n"


def chat_event(content: str, finish_reason: str | None = None, **more: Any) -> bytes:
    delta = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish_reason}
    reported = {
        "id": "chatcmpl-x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [delta],
    }
    return event(reported | more)


USAGE = {
    "prompt_tokens": 42,
    "total_tokens": 45,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 32},
}


def usage_event() -> bytes:
    reported = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return event(reported | {"choices": [], "usage": USAGE})


def chat_stream(*words: str, usage: bool = True) -> list[bytes]:
    """The events of a chat stream, as a pod that was asked for usage sends them."""
    events = [chat_event(word) for word in words[:-1]] + [chat_event(words[-1], "stop")]
    return [*events, *([usage_event()] if usage else []), DONE]


def chunked(events: list[bytes]) -> bytes:
    """Each event in a chunk of its own, and the end."""
    return b"".join(map(chunk, events)) + LAST_CHUNK


def chat_answer(content: str = "Hi.") -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def error_answer(message: str, status: int, *, kind: str = "BadRequestError", param: str | None = None) -> bytes:
    """An error as vLLM tells it."""
    return answer_bytes({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)
