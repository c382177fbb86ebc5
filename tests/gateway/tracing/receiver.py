"""A receiver of OTLP/HTTP on loopback, written with the official protobufs, in the loop of its test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATIENCE_S = 60.0


@dataclass
class Receiver:
    """What has been received so far, and how the next export is answered."""

    url: str = ""
    status: int = 200
    fields: dict[str, str] = field(default_factory=dict)
    rejects: int = 0
    """Spans of each export that it says it rejects."""
    hangs: bool = False
    """It reads an export and never answers."""
    exports: list[ExportTraceServiceRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def of_trace(self, trace_id: str) -> list[Span]:
        """Spans of one trace, by their start; parents before children."""
        found = [span for span in self.spans if span.trace_id.hex() == trace_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    async def until(self, is_so: Callable[[Receiver], bool]) -> None:
        """Wait until an export has made it so."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: is_so(self))

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        status, hangs = self.status, self.hangs
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        if status == 200 and not hangs:
            self.exports.append(ExportTraceServiceRequest.FromString(body))
        async with self.changed:
            self.changed.notify_all()
        if hangs:
            await self.released.wait()
        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.CopyFrom(ExportTracePartialSuccess(rejected_spans=self.rejects))
        return web.Response(status=status, body=answer.SerializeToString(), headers=self.fields)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("POST", "/{path:.*}", receiver.receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}"
    try:
        yield receiver
    finally:
        receiver.released.set()
        await runner.cleanup()


def attributes_of(span: Span) -> dict[str, object]:
    """Attributes of a span as plain values."""
    return {each.key: plain(each.value) for each in span.attributes}


def plain(value: AnyValue) -> object:
    """An attribute's value as a plain one."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
