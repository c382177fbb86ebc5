"""Export in batches from a bounded queue, against a receiver written with the official protobufs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gateway.config.tracing import TracingConfig
from gateway.runtime.trace_context import RequestTrace
from gateway.tracing import exporter as exporting
from gateway.tracing.exporter import DropReason, ExportResult, SpanExporter
from gateway.tracing.otlp import Envelope, encode_spans, rejected_spans
from gateway.tracing.sender import OtlpSender, traces_path
from gateway.tracing.spans import AttributeValue, Span, SpanKind, spans_of
from gateway.tracing.tracing import Tracing, make_tracing
from tests.gateway.samples import an_attempt, an_outcome
from tests.gateway.tracing.receiver import PATIENCE_S, attributes_of, receiving

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


def a_request(number: int = 1) -> Any:
    trace = RequestTrace(f"{number:032x}", "0b" * 8, root=number, flags=1, state="a=1")
    return an_outcome(trace=trace, attempts=(an_attempt(model="tiny", duration_s=1.25),))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between exports are short."""
    monkeypatch.setattr(exporting, "EXPORT_INTERVAL_S", 0.01)
    monkeypatch.setattr(exporting, "FIRST_BACKOFF_S", 0.01)


class Log:
    """What was logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, level: str, event: str, **fields: object) -> None:
        self.events.append((event, fields))


@asynccontextmanager
async def exporting_to(url: str, **changes: Any) -> AsyncIterator[Tracing]:
    """A running exporter; what is queued is flushed at the end."""
    tracing = make_tracing(TracingConfig(url, sample_ratio=1.0, **changes), lambda _: 7, Log())
    running = asyncio.create_task(tracing.run())
    await asyncio.sleep(0)
    try:
        yield tracing
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_spans_arrive_as_they_were_built() -> None:
    """Ids, parents, times, attributes, status, scope and resource."""
    async with receiving() as receiver, exporting_to(receiver.url, service_name="edge") as tracing:
        tracing.exporter.export(a_request())
        await receiver.until(lambda received: len(received.spans) == 6)
    outcome = a_request()
    root, *others = receiver.spans
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (
        "0" * 31 + "1",
        "0" * 15 + "1",
        "0b" * 8,
    )
    assert (root.name, root.kind, root.trace_state, root.flags & 0x301) == ("chat tiny", 2, "a=1", 0x301)
    for sent, built in zip(receiver.spans, spans_of(outcome), strict=True):
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in built.attributes.items()}
        assert attributes_of(sent) == values
        assert abs(sent.start_time_unix_nano - built.start_s * 1e9) < 1000
        assert abs(sent.end_time_unix_nano - built.end_s * 1e9) < 1000
        assert sent.status.code == (2 if built.is_error else 0)
    assert {span.parent_span_id for span in others} <= {span.span_id for span in receiver.spans}
    resource = receiver.exports[0].resource_spans[0]
    assert resource.scope_spans[0].scope.name == "hearth"
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "edge"
    assert receiver.paths == ["/v1/traces"]
    assert receiver.headers[0]["Content-Type"] == "application/x-protobuf"
    assert tracing.exporter.exported_traces == 1


async def test_many_requests_are_one_export() -> None:
    """At most `MAX_BATCH` of them."""
    async with receiving() as receiver, exporting_to(receiver.url) as tracing:
        for number in range(1, 601):
            tracing.exporter.export(a_request(number))
        await receiver.until(lambda received: len(received.spans) == 3600)
    assert len(receiver.exports) <= 600 / exporting.MAX_BATCH + 2
    assert len({span.trace_id for span in receiver.spans}) == 600


async def test_headers_are_read_for_each_connection(tmp_path: Path) -> None:
    """A credential that is replaced is used without a restart, after the receiver has rejected the old one."""
    file = tmp_path / "headers"
    file.write_text("# for the collector\nAuthorization: Bearer one\n")
    async with receiving() as receiver, exporting_to(receiver.url, headers_file=file) as tracing:
        receiver.status = 401
        tracing.exporter.export(a_request())
        await receiver.until(lambda received: len(received.headers) == 1)
        file.write_text("authorization: Bearer two\n")
        receiver.status = 200
        tracing.exporter.export(a_request(2))
        await receiver.until(lambda received: len(received.exports) == 1)
    assert [each["Authorization"] for each in receiver.headers] == ["Bearer one", "Bearer two"]
    assert tracing.exporter.dropped == {DropReason.REJECTED: 1, DropReason.SHUTDOWN: 0}


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (429, 3), (400, 1), (404, 1)])
async def test_only_what_may_succeed_is_sent_again(status: int, tries: int) -> None:
    """The statuses that OTLP names, a few times; then the batch is dropped and counted."""
    async with receiving() as receiver, exporting_to(receiver.url) as tracing:
        receiver.status, receiver.fields = status, {"retry-after": "0"}
        tracing.exporter.export(a_request())
        await receiver.until(lambda received: len(received.bodies) == tries)
        receiver.status = 200
        tracing.exporter.export(a_request(2))
        await receiver.until(lambda received: len(received.exports) == 1)
    assert len(receiver.bodies) == tries + 1
    reason = DropReason.EXPORT_FAILED if tries > 1 else DropReason.REJECTED
    assert tracing.exporter.dropped[reason] == 1
    log = tracing.log_event
    assert isinstance(log, Log)
    assert [event for event, _ in log.events] == ["trace_export_failed", "trace_export_recovered"]


async def test_what_a_receiver_rejects_of_an_export_is_counted() -> None:
    """It answers with success and the number of spans."""
    async with receiving() as receiver, exporting_to(receiver.url) as tracing:
        receiver.rejects = 4
        tracing.exporter.export(a_request())
        await receiver.until(lambda received: len(received.exports) == 1)
    assert (tracing.exporter.exported_traces, tracing.exporter.rejected_spans) == (1, 4)


@pytest.mark.parametrize("is_down", [True, False])
async def test_a_receiver_that_does_not_answer_fills_the_queue_and_no_more(is_down: bool) -> None:
    """Beyond it requests are dropped and counted; the end of the gateway waits for its bound and no longer."""
    async with receiving() as receiver:
        receiver.hangs = True
        url = NOWHERE if is_down else receiver.url
        async with exporting_to(url, flush_s=0.05) as tracing:
            exporter = tracing.exporter
            for number in range(1, 3 * exporting.MAX_QUEUED):
                exporter.export(a_request(number))
            assert exporter.dropped[DropReason.QUEUE_FULL] >= exporting.MAX_QUEUED - 2 * exporting.MAX_BATCH
            assert len(exporter._queue) <= exporting.MAX_QUEUED
        assert exporter.exported_traces == 0
        assert exporter.dropped[DropReason.SHUTDOWN] > 0
        shown = {
            (sample.name, *sample.labels.values()): sample.value
            for family in exporter.collect()
            for sample in family.samples
        }
        assert shown["hearth_traces_dropped_total", "queue_full"] == exporter.dropped[DropReason.QUEUE_FULL]
        assert shown["hearth_traces_exported_total",] == 0


async def test_the_end_of_the_gateway_exports_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not at the next interval."""
    monkeypatch.setattr(exporting, "EXPORT_INTERVAL_S", 3600.0)
    async with receiving() as receiver:
        async with exporting_to(receiver.url) as tracing:
            for number in range(1, 21):
                tracing.exporter.export(a_request(number))
        assert len({span.trace_id for span in receiver.spans}) == 20
    assert tracing.exporter.exported_traces == 20


def run_to_end(exporter: SpanExporter, *requests: Any) -> None:
    """Export these and end, in a thread as always."""
    for request in requests:
        exporter.export(request)
    exporter.start()
    exporter.close(PATIENCE_S)


class Sender:
    """Takes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def send(self, body: bytes, timeout_s: float) -> ExportResult:
        self.sent.append(body)
        return ExportResult()

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        """Nothing waits."""


def test_a_request_whose_spans_cannot_be_built_is_lost_alone() -> None:
    """The others of its batch are exported."""

    def encode(trace: RequestTrace, spans: Any) -> bytes:
        if trace.root == 2:
            raise ValueError("no")
        return encode_spans(trace, spans)

    sender = Sender()
    exporter = SpanExporter(encode=encode, wrap=Envelope({}).wrap, sender=sender, timeout_s=1.0, log_event=Log())
    run_to_end(exporter, a_request(1), a_request(2), a_request(3))
    assert (exporter.exported_traces, exporter.dropped[DropReason.EXPORT_FAILED], len(sender.sent)) == (2, 1, 1)
    assert sender.is_closed


async def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    """Receivers close what is idle; the export is sent once more."""
    connections = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sender = OtlpSender(f"http://127.0.0.1:{port}/base/", dict[str, str], rejected_spans)
        for _ in range(3):
            assert await asyncio.to_thread(sender.send, b"spans", PATIENCE_S) == ExportResult()
        sender.close()
    assert connections == 3


@pytest.mark.parametrize(
    ("path", "sent"),
    [("", "/v1/traces"), ("/", "/v1/traces"), ("/otlp/", "/otlp/v1/traces"), ("/v1/traces", "/v1/traces")],
)
def test_the_path_of_traces_is_appended(path: str, sent: str) -> None:
    """As OpenTelemetry's own exporters do with a base URL."""
    assert traces_path(path) == sent


def test_an_answer_that_cannot_be_read_rejects_nothing() -> None:
    """Some receivers answer in JSON whatever was sent."""
    assert rejected_spans(b"{}") == 0
    assert rejected_spans(b"") == 0


@asynccontextmanager
async def answering(*parts: bytes, again: bytes = b"") -> AsyncIterator[str]:
    """A receiver that sends the parts whatever it receives, then `again` without end; its URL."""
    answers, ended = list[asyncio.Task[None]](), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            # A connection that is closed with unread bytes is reset, and the answer may be lost.
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            for part in parts:
                writer.write(part)
            while again and not (writer.is_closing() or ended.is_set()):
                writer.write(again)
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), 0.01)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.create_task(answer(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
        ended.set()
        await asyncio.gather(*answers)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: "],
)
async def test_a_receiver_that_answers_without_end_is_cut_off(head: bytes) -> None:
    """Each of its steps is in time; the export as a whole is not."""
    again = head if b"100" in head else b"x"
    async with answering(head, again=again) as url:
        sender = OtlpSender(url, dict[str, str], rejected_spans)
        result = await asyncio.to_thread(sender.send, b"spans", 0.2)
        sender.close()
    assert result.may_retry or not result.error


async def test_a_malformed_answer_is_logged_in_part() -> None:
    """Of the line that a receiver sent instead of a status, a log has the beginning."""
    async with answering(b"x" * 60_000 + b"\r\n") as url:
        sender = OtlpSender(url, dict[str, str], rejected_spans)
        result = await asyncio.to_thread(sender.send, b"spans", PATIENCE_S)
    assert "BadStatusLine" in result.error
    assert len(result.error) <= 200


def test_a_negative_count_of_rejected_spans_is_none() -> None:
    """A counter must not fall because of what a receiver answers."""
    answer = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=-5))
    assert rejected_spans(answer.SerializeToString()) == 0


@pytest.mark.parametrize(
    "value", [0, -3, 127, 128, 16_383, 16_384, 1 << 31, (1 << 63) - 1, True, 0.25, "text", ("a", "b")]
)
def test_attributes_are_read_as_they_were_written(value: AttributeValue) -> None:
    """By the official messages, whatever their size; also the second time, from what is remembered."""
    span = Span("chat", SpanKind.SERVER, 5, None, 1.0, 2.0, {"before": 1, "it": value, "hearth.request_id": "after"})
    for _ in range(2):
        body = Envelope({}).wrap([encode_spans(RequestTrace("0a" * 16, root=5, flags=1), [span])])
        (decoded,) = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
        values = [getattr(each.value, each.value.WhichOneof("value") or "") for each in decoded.attributes]
        assert [each.key for each in decoded.attributes] == ["before", "it", "hearth.request_id"]
        found = tuple(each.string_value for each in values[1].values) if isinstance(value, tuple) else values[1]
        assert (type(found), found) == (type(value), value)
