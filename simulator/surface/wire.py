"""What all APIs share on the wire: error bodies, JSON answers, event streams. Independent of prompts and steps.

vLLM has three shapes of errors: OpenAI's, Anthropic's (for what is wrong with a message's meaning), and a bare `detail`
(for invalid JSON and unknown paths).
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from aiohttp import web

from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.service import Service
from simulator.surface.mishap import CutError, Mishap, end_connection

SERVICE = web.AppKey("service", Service)

ENGINE_ISSUE = "EngineCore encountered an issue. See stack trace (above) for the root cause."
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."

JSON_TYPE = "application/json"


class ApiError(Exception):
    """An answer that is an error. `is_format`: what is wrong is the form, and every API says so in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        kind: str = "BadRequestError",
        param: str | None = None,
        status: int = 400,
        *,
        is_format: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.param = param
        self.status = status
        self.is_format = is_format

    def body(self, path: str) -> dict[str, Any]:
        """As the API at this path says it."""
        if path.startswith("/v1/messages") and not self.is_format:
            return {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


class BadBytesError(Exception):
    """A body that is not JSON at all, down to its bytes."""


def malformed(name: str, kind: str, message: str, value: object = None) -> ApiError:
    """A field of the wrong type, in the words of vLLM's validation."""
    at = f"body.{name}" if name else "body"
    shown = (
        f"1 validation error:\n  {{'type': '{kind}', 'loc': '{at}', 'msg': '{message}', 'input': {str(value)[:200]!r}}}"
    )
    return ApiError(shown, "Bad Request", at, is_format=True)


def busy() -> ApiError:
    """The pod has enough to do."""
    return ApiError(BUSY, "Service Unavailable", status=503)


def engine_issue() -> ApiError:
    """The engine died."""
    return ApiError(ENGINE_ISSUE, "InternalServerError", status=500)


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def fault_error(fault: Fault) -> ApiError:
    """Return the error response of a fault that is an error."""
    return busy() if fault.kind is FaultKind.REJECT else engine_issue()


def compact(value: object) -> str:
    """JSON as vLLM writes it."""
    return _ENCODER.encode(value)


def new_call_id() -> str:
    """Return a new id for a tool call."""
    return f"chatcmpl-tool-{uuid4().hex}"


def json_answer(value: object, status: int = 200) -> web.Response:
    """A whole answer."""
    return web.Response(body=compact(value).encode(), status=status, headers={"Content-Type": JSON_TYPE})


BEFALLEN = web.RequestKey("befallen", Fault)
"""The fault that applies to a request's stream, if any."""


async def open_stream(request: web.Request, *opening: tuple[str, str]) -> EventStream:
    """A stream whose head is out, and the named events that need no token: vLLM sends these at once."""
    fault = request.get(BEFALLEN, NO_FAULT)
    stream = EventStream(request, Mishap(fault, request))
    await stream.open()
    for name, value in opening:
        await stream.send_named(name, value)
    if fault.is_late:
        raise CutError(await stream.fail(fault_error(fault)))
    return stream


class EventStream:
    """A stream of server-sent events, one HTTP chunk each. The head goes out before there is anything to say."""

    def __init__(self, request: web.Request, mishap: Mishap) -> None:
        self._request = request
        self._mishap = mishap
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Vary": "Origin"},
        )
        self.response.enable_chunked_encoding()

    async def open(self) -> None:
        """Send the head."""
        await self.response.prepare(self._request)
        await self._mishap.befall(self.response)

    async def send(self, data: str) -> None:
        """An event without a name."""
        await self._write(f"data: {data}\n\n".encode())

    async def send_named(self, name: str, data: str) -> None:
        """An event with a name."""
        await self._write(f"event: {name}\ndata: {data}\n\n".encode())

    async def close(self) -> web.StreamResponse:
        """End well, unless it is to be cut."""
        self._mishap.befall_end(self.response)
        await self.response.write_eof()
        return self.response

    async def fail(self, error: ApiError | None = None) -> web.StreamResponse:
        """The engine died, or refused late. What a client sees of it is as far from a status as vLLM has it."""
        body = (error or engine_issue()).body("")
        match self._request.path:
            case "/v1/responses":
                end_connection(self._request)
                raise CutError(self.response)
            case "/v1/messages":
                await self.send_named("error", compact({"type": "error", "error": _mangled(body)}))
            case _:
                await self.send(json.dumps(body))
                await self.send("[DONE]")
        return await self.close()

    async def _write(self, event: bytes) -> None:
        if event := await self._mishap.befall(self.response, event):
            await self.response.write(event)
        # Due right after this event: the stream may pause next, and the client should not wait for it.
        await self._mishap.befall(self.response)


def _mangled(body: dict[str, Any]) -> dict[str, str]:
    """What /v1/messages makes of an error that chat told it: it takes it for a chunk, and fails to read it."""
    body_repr = repr(body)
    message = (
        f"2 validation errors for ChatCompletionStreamResponse: Field required, {body_repr[:60]}...{body_repr[-24:]}"
    )
    return {"type": "internal_error", "message": message}
