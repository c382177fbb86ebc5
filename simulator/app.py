"""The HTTP application of a simulated pod: its paths, and what happens to a request before any API sees it."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from simulator.faults import Fault, FaultKind, Trouble, parse_fault
from simulator.service import Service
from simulator.surface import chat, completions, messages, pooling, responses, state, tokenizing
from simulator.surface.mishap import CutError
from simulator.surface.wire import (
    BEFALLEN,
    SERVICE,
    ApiError,
    BadBytesError,
    busy,
    engine_issue,
    fault_error,
    json_answer,
)
from simulator.transfer.transfers import Transfers

GUARDED = ("/v1", "/v2", "/inference")
"""Paths below these want the API key; all others are open."""

REMEMBERED_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class Received:
    """One request as received, for tests that check what reached a pod."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Door:
    """What stands between the socket and the APIs."""

    service: Service
    trouble: Trouble
    begin_fault: Callable[[Fault], None]
    received: deque[Received] = field(default_factory=lambda: deque(maxlen=REMEMBERED_REQUESTS))


_GENERATE: dict[str, Handler] = {
    "/v1/chat/completions": chat.complete_chat,
    "/v1/completions": completions.complete_text,
    "/v1/responses": responses.create_response,
    "/v1/messages": messages.create_message,
}
_POOLING: dict[str, Handler] = {
    "/v1/embeddings": pooling.embed,
    "/pooling": pooling.pool,
    "/classify": pooling.classify,
    "/score": pooling.score,
    "/v1/score": pooling.score,
    "/rerank": pooling.rerank,
    "/v1/rerank": pooling.rerank,
    "/v2/rerank": pooling.rerank,
}
_OF_ENGINE = frozenset({*_GENERATE, *_POOLING})
_READ: dict[str, Handler] = {
    "/health": state.health,
    "/ping": state.health,
    "/v1/models": state.models,
    "/version": state.version,
    "/load": state.load,
    "/metrics": state.metrics,
    "/kv_event_sources": state.event_sources,
}


def make_app(door: Door) -> web.Application:
    """The application; its pod decides where it listens."""
    # vLLM reads bodies of any size.
    app = web.Application(middlewares=[_guard(door)], client_max_size=0)
    app[SERVICE] = door.service
    router = app.router
    for path, handler in _READ.items():
        router.add_get(path, handler, allow_head=False)
    router.add_post("/ping", state.health)
    posted: dict[str, Handler] = {
        "/tokenize": tokenizing.tokenize,
        "/detokenize": tokenizing.detokenize,
        "/reset_prefix_cache": state.reset_prefix_cache,
        "/faults": _Faults(door).order,
    }
    if "generate" in door.service.options.tasks:
        posted |= {**_GENERATE, "/v1/messages/count_tokens": messages.count_tokens}
    if "pooling" in door.service.options.tasks:
        posted |= _POOLING
    for path, handler in posted.items():
        router.add_post(path, handler)
    app.on_response_prepare.append(_add_headers)
    return app


def bootstrap_app(transfers: Transfers) -> web.Application:
    """Mooncake's bootstrap server: says who this pod is to other pods."""

    async def query(_: web.Request) -> web.Response:
        return json_answer(transfers.who())

    app = web.Application()
    app.router.add_get("/query", query)
    return app


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    service = request.app[SERVICE]
    response.headers["Server"] = "uvicorn"
    if service.options.reports_request_id and (request_id := request.headers.get("X-Request-Id")):
        response.headers["x-request-id"] = request_id
    if request.headers.get("endpoint-load-metrics-format", "").upper() == "JSON":
        books = [rank.engine.statistics() for rank in service.ranks]
        report = {
            "num_requests_waiting": float(sum(each.waiting for each in books)),
            "kv_cache_usage_perc": sum(each.kv_usage for each in books) / len(books),
        }
        response.headers["endpoint-load-metrics"] = f"JSON {json.dumps({'named_metrics': report})}"


def _guard(door: Door) -> Middleware:
    """The middleware that every request passes."""
    guard = _Guard(door)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await guard.let_in(request, handler)

    return middleware


class _Guard:
    """Keys, faults and limits first; errors turned into answers last."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer the request, whatever comes of it."""
        try:
            if rejection := self._unauthorized(request):
                return rejection
            await self._remember(request)
            if request.path in _OF_ENGINE and request.method == "POST":
                await self._befall(request)
            return await handler(request)
        except ApiError as error:
            return json_answer(error.body(request.path), error.status)
        except BadBytesError:
            return json_answer({"detail": "There was an error parsing the body"}, 400)
        except CutError as cut:
            return cut.response
        except web.HTTPException as rejection:
            answer = json_answer({"detail": rejection.reason}, rejection.status)
            if allowed := rejection.headers.get("Allow"):
                answer.headers["Allow"] = allowed
            return answer

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        key = self._door.service.options.api_key
        if key is None or not request.path.startswith(GUARDED):
            return None
        given = request.headers.get("Authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {key}".encode()):
            return None
        return json_answer({"error": "Unauthorized"}, 401)

    async def _remember(self, request: web.Request) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self._door.received.append(Received(request.method, request.path, headers, await request.read()))

    async def _befall(self, request: web.Request) -> None:
        """Apply the current fault to the request, and count it against the limits."""
        service, fault = self._door.service, self._door.trouble.befall()
        match fault.kind:
            case FaultKind.FREEZE:
                await asyncio.get_running_loop().create_future()
            case FaultKind.DROP:
                raise _dropped(request)
            case FaultKind.CUT | FaultKind.RESET | FaultKind.MUTE | FaultKind.DAMAGE | FaultKind.ABORT:
                request[BEFALLEN] = fault
            case FaultKind.REJECT | FaultKind.ERROR:
                if not (fault.is_late and _wants_stream(await request.read())):
                    raise fault_error(fault)
                request[BEFALLEN] = fault
        if service.is_dead:
            raise engine_issue()
        if not service.is_loaded:
            raise busy()
        max_queued = service.options.max_num_queued_reqs
        if max_queued is not None and service.in_flight >= max_queued:
            service.rejected += 1
            raise busy()


def _wants_stream(body: bytes) -> bool:
    try:
        request_body = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(request_body, dict) and request_body.get("stream") is True


def _dropped(request: web.Request) -> CutError:
    if request.transport is not None:
        request.transport.abort()
    return CutError(web.Response())


class _Faults:
    """POST /faults."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def order(self, request: web.Request) -> web.StreamResponse:
        """Answer first: some faults leave nothing to answer with."""
        try:
            fault = parse_fault(await request.json())
        except (ValueError, TypeError) as error:
            raise ApiError(str(error)) from None
        answer = json_answer({"kind": fault.kind})
        await answer.prepare(request)
        await answer.write_eof()
        self._door.begin_fault(fault)
        return answer
