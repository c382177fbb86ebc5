"""A provider outside the fleet on this machine: OpenAI's and Anthropic's wire shapes, and how they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.gateway.fake_pod import Pulse
from tests.gateway.kv_index.redis_servers import free_port

CHAT, MESSAGES, MODELS = "/v1/chat/completions", "/v1/messages", "/models"


@dataclass(slots=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.raw))


@dataclass(slots=True)
class FakeProvider:
    """What it answers; may be changed while it runs."""

    text: str = "An answer from outside."
    key: str = "sk-provider"
    status: int = 200
    """Of all answers; with an error body of the API where it is an error."""
    retry_after: str | None = None
    is_silent: bool = False
    """It takes requests and never answers."""
    cuts_after: int | None = None
    """Events of a stream after which it closes the connection."""
    pauses_after: int | None = None
    """Events of a stream after which it waits until it is released."""
    is_cut: bool = False
    calls_tool: bool = False
    port: int = 0
    probes: int = 0
    """Requests for the list of models, which are always answered and are not among `received`."""
    received: list[Received] = field(default_factory=list)
    runner: web.AppRunner | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    pulse: Pulse = field(default_factory=Pulse)
    """Beats whenever a request arrives."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def all_bytes(self) -> bytes:
        """Everything that it has ever received, heads included."""
        return b"\n".join(f"{each.path} {each.headers}".encode("utf-8", "replace") + each.raw for each in self.received)

    async def start(self) -> None:
        """Listen, on the same port as before where there was one."""
        self.is_cut = False
        self.port = self.port or free_port()
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.route("*", "/{path:.*}", self._answer)])
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        """Close the port and all connections: the backhaul is cut."""
        self.is_cut = True
        self.released.set()
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None
        self.released = asyncio.Event()

    def release(self) -> None:
        """Let everything go on that waits, and what comes later as well."""
        self.is_silent, self.pauses_after = False, None
        self.released.set()
        self.released = asyncio.Event()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if request.method == "GET" and request.path.endswith(MODELS):
            self.probes += 1
            self.pulse.beat()
            return web.json_response({"object": "list", "data": []})
        self.received.append(Received(request.path, {k.lower(): v for k, v in request.headers.items()}, raw))
        self.pulse.beat()
        if self.is_silent:
            await self.released.wait()
            if self.is_cut and request.transport is not None:
                request.transport.abort()
        is_anthropic = request.path.endswith(MESSAGES)
        if self._key_of(request) != self.key:
            return self._error(401, is_anthropic=is_anthropic)
        if self.status != 200:
            return self._error(self.status, is_anthropic=is_anthropic)
        body = json.loads(raw)
        if body.get("stream"):
            events = self._message_events(body) if is_anthropic else self._chat_events(body)
            return await self._stream(request, events)
        return web.json_response(self._message(body) if is_anthropic else self._completion(body))

    def _key_of(self, request: web.Request) -> str | None:
        return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")

    def _error(self, status: int, *, is_anthropic: bool) -> web.Response:
        headers = {"retry-after": self.retry_after} if self.retry_after is not None else {}
        detail = {"type": "some_error", "message": "No, because of what you said."}
        body = {"type": "error", "error": detail} if is_anthropic else {"error": detail | {"code": None, "param": None}}
        return web.json_response(body, status=status, headers=headers)

    async def _stream(self, request: web.Request, events: list[bytes]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        for number, event in enumerate(events):
            if self.cuts_after is not None and number >= self.cuts_after:
                assert request.transport is not None
                request.transport.abort()
                break
            if number == self.pauses_after:
                self.pulse.beat()
                await self.released.wait()
            await answer.write(event)
        return answer

    @property
    def words(self) -> list[str]:
        return [word + " " for word in self.text.split()]

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        reason = "stop"
        if self.calls_tool and body.get("tools"):
            function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"a":1}'}
            message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
            reason = "tool_calls"
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"] + "-2026",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
        }

    def _chat_events(self, body: dict[str, Any]) -> list[bytes]:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"] + "-2026"}

        def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
            return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

        events = [chunk({"role": "assistant", "content": ""})]
        if self.calls_tool and body.get("tools"):
            function = {"name": body["tools"][0]["function"]["name"], "arguments": ""}
            events.append(
                chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})
            )
            events += [
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}) for part in ('{"a"', ":1}")
            ]
            events.append(chunk({}, "tool_calls"))
        else:
            events += [chunk({"content": word}) for word in self.words]
            events.append(chunk({}, "stop"))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
            events.append(b"data: " + json.dumps({**head, "choices": [], "usage": usage}).encode() + b"\n\n")
        return [*events, b"data: [DONE]\n\n"]

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": self.text}]
        reason = "end_turn"
        if self.calls_tool and body.get("tools"):
            content.append({"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": {"a": 1}})
            reason = "tool_use"
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"] + "-2026",
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": 9, "cache_read_input_tokens": 2, "output_tokens": 5},
        }

    def _message_events(self, body: dict[str, Any]) -> list[bytes]:
        message = self._message(body) | {"content": [], "stop_reason": None}
        message["usage"] = {"input_tokens": 9, "cache_read_input_tokens": 2, "output_tokens": 1}

        def event(name: str, **fields: Any) -> bytes:
            return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()

        events = [event("message_start", message=message), event("ping")]
        events.append(event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
        events += [
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": word}) for word in self.words
        ]
        events.append(event("content_block_stop", index=0))
        reason = "end_turn"
        if self.calls_tool and body.get("tools"):
            block = {"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": {}}
            events.append(event("content_block_start", index=1, content_block=block))
            events += [
                event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": part})
                for part in ('{"a"', ":1}")
            ]
            events.append(event("content_block_stop", index=1))
            reason = "tool_use"
        delta = {"stop_reason": reason, "stop_sequence": None}
        events.append(event("message_delta", delta=delta, usage={"output_tokens": 5}))
        return [*events, event("message_stop")]


@asynccontextmanager
async def a_provider(**answers: Any) -> AsyncIterator[FakeProvider]:
    """A provider that listens."""
    provider = FakeProvider(**answers)
    await provider.start()
    try:
        yield provider
    finally:
        await provider.stop()
