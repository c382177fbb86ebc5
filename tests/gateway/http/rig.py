"""A front with scripted pods behind it and raw sockets before it: what is on the wire is said byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.config.cors import CorsPolicy
from gateway.config.limits import Limits, Timeouts
from gateway.http.request_headers import Networks
from gateway.limits.accounts import QuotaEnforcer
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.attempt import AttemptLimits, AttemptStatus
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import Outcome
from gateway.relay.http_transport import PodKeys
from gateway.server.dispatcher import Identify
from gateway.server.http_server import HttpServer
from routing.decision.router import Router
from routing.pods import EngineShape, ModelCard, Pod, PodState
from routing.rejection import RequestRejected
from routing.retries import RetryBudget
from scorers.registry import routings
from tenancy.tenants import ANONYMOUS_CALLER
from tests.gateway.http.scripted import PATIENCE_S, ScriptedPod, read_head, until

UNHURRIED = Timeouts(upstream_connect_s=PATIENCE_S)
"""The usual ones, on a machine that may be busy with something else."""

QUICK = Timeouts(
    request_header_s=0.6,
    request_body_s=0.6,
    downstream_idle_s=0.6,
    upstream_connect_s=PATIENCE_S,
    upstream_read_s=0.6,
    downstream_write_s=0.6,
)
"""For tests of what is late."""


# -- clients -------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a client was sent. `chunks` are as they were framed."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)
    is_whole: bool = True

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The machine code of an error."""
        return str(self.json()["error"]["code"])


class RawClient:
    """A socket that sends what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Send one request and read its answer."""
        await self.send(request_bytes(path, body, **headers))
        return await self.answer()

    async def answer(self, *, has_body: bool = True) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                head = await read_head(self.reader)
                if head is None:
                    raise EOFError("the connection was closed before an answer")
                line, headers = head
                status = int(line.split(" ")[1])
                if status >= 200:
                    break
            answer = Answer(status, headers, b"")
            try:
                if has_body:
                    await self._read_body(answer)
            except (asyncio.IncompleteReadError, ConnectionError) as short:
                answer.body += getattr(short, "partial", b"")
                answer.is_whole = False
            return answer

    async def _read_body(self, answer: Answer) -> None:
        if answer.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                answer.chunks.append(chunk)
                answer.body += chunk
        elif "content-length" in answer.headers:
            answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
        else:
            answer.body = await self.reader.read()

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            head = await read_head(self.reader)
        assert head is not None
        return int(head[0].split(" ")[1]), head[1]

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body, empty at its end."""
        async with asyncio.timeout(PATIENCE_S):
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def is_closed(self) -> bool:
        """Wait for the other side to close."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    def leave(self) -> None:
        self.writer.transport.abort()


def request_bytes(path: str, body: Any = None, *, method: str | None = None, **headers: str) -> bytes:
    """A request as a decent client sends it. Headers are given with underscores."""
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "hearth", **({"content-type": "application/json"} if body is not None else {})}
    if body is not None:
        fields["content-length"] = str(len(payload))
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    method = method or ("GET" if body is None else "POST")
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + payload


# -- between them --------------------------------------------------------------------------------------------------

MODEL = "tiny"
CHAT_PATH = "/v1/chat/completions"


def a_chat(*, stream: bool = False, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say hi."}], "stream": stream, **fields}


@dataclass
class Rig:
    """Everything that stands while a test runs."""

    front: HttpServer
    router: Router
    pods: list[ScriptedPod]
    server: asyncio.Server
    outcomes: list[Outcome]
    ends: list[tuple[str, AttemptStatus]]
    refusals: list[RequestRejected]
    faults: list[dict[str, Any]]
    pipeline: RequestPipeline
    clients: list[RawClient] = field(default_factory=list)

    @property
    def pod(self) -> ScriptedPod:
        return self.pods[0]

    @property
    def budget(self) -> RetryBudget:
        """Of second attempts."""
        return self.pipeline.budget

    async def client(self) -> RawClient:
        host, port = self.server.sockets[0].getsockname()[:2]
        client = RawClient(*await asyncio.open_connection(host, port, limit=1 << 24))
        self.clients.append(client)
        return client

    async def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        client = await self.client()
        try:
            return await client.ask(path, body, **headers)
        finally:
            client.leave()

    async def is_quiet(self) -> None:
        """Nothing is left of anybody: no charge, no task, no connection, no byte of a body."""
        for client in self.clients:
            client.leave()
        await until(lambda: not self.front.open_connections and not self.front.open_requests)
        assert self.router.ledger.is_empty()
        assert self.front.body_budget.held_bytes == self.front.dispatcher.transports.kept_bodies.held_bytes == 0
        await until(lambda: self.front.pool.open_count == self.front.pool.idle_count)


def a_passage(
    router: Router,
    outcomes: list[Outcome],
    ends: list[tuple[str, AttemptStatus]],
    patience: AttemptLimits | None,
    make_room: Callable[[Router], AdmissionQueue] | None,
    make_quotas: Callable[[Router], QuotaEnforcer] | None,
) -> RequestPipeline:
    return RequestPipeline(
        router,
        health=lambda url, end: ends.append((url, end)),
        observers=[outcomes.append],
        clock=asyncio.get_running_loop().time,
        wall_clock=lambda: 1.8e9,
        draw=lambda: 0.0,
        limits=patience or AttemptLimits(),
        queue=make_room(router) if make_room is not None else None,
        reserve=make_quotas(router).reserve if make_quotas is not None else None,
    )


@asynccontextmanager
async def a_rig(
    pods: int = 1,
    *,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    patience: AttemptLimits | None = None,
    identify: Identify = lambda *_: ANONYMOUS_CALLER,
    trusted: Networks = (),
    key: str | None = None,
    ranks: Sequence[int | None] = (None,),
    readiness: Callable[[], bool] = lambda: True,
    make_room: Callable[[Router], AdmissionQueue] | None = None,
    make_quotas: Callable[[Router], QuotaEnforcer] | None = None,
    cors: CorsPolicy | None = None,
) -> AsyncIterator[Rig]:
    """A front over scripted pods. After the test nothing may be left over, and nothing of ours may have failed."""
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    router = Router(routings()["round-robin"])
    scripted = [ScriptedPod() for _ in range(pods)]
    for pod in scripted:
        await pod.start()
        put_pod(router, pod.url, ranks)
    outcomes: list[Outcome] = []
    ends: list[tuple[str, AttemptStatus]] = []
    refusals: list[RequestRejected] = []
    pipeline = a_passage(router, outcomes, ends, patience, make_room, make_quotas)
    front = HttpServer(
        pipeline,
        router,
        identify,
        PodKeys(key),
        limits or Limits(),
        timeouts or UNHURRIED,
        readiness,
        trusted=trusted,
        on_rejected=refusals.append,
        cors=cors,
    )
    server = await loop.create_server(front.make_protocol, "127.0.0.1", 0)
    rig = Rig(front, router, scripted, server, outcomes, ends, refusals, faults, pipeline)
    try:
        yield rig
        await rig.is_quiet()
    finally:
        for client in rig.clients:
            client.leave()
        server.close()
        front.close()
        await until(lambda: not front.open_connections and not front.pool.open_count and not front.open_requests)
        for pod in scripted:
            await pod.stop()
    assert not faults, faults


def put_pod(router: Router, url: str, ranks: Sequence[int | None] = (None,), model: str = MODEL) -> None:
    router.put_pod(
        Pod(url, PodState.READY, frozenset({model}), cards=(ModelCard(model, root=f"org/{model}", max_model_len=4096),))
    )
    router.reshape_pod(url, [EngineShape(rank, kv_tokens=100_000) for rank in ranks])
