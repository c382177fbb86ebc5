"""Spans as OTLP: the official protobuf messages, encoded request by request. The only module that imports them.

Needs the extra `hearth-gateway[otel]`. Encoded spans of several requests are joined by their bytes: protobuf merges
messages that follow one another, and a repeated field grows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status

from gateway.runtime.trace_context import RequestTrace
from gateway.tracing.spans import AttributeValue, Span

SCOPE = "hearth"

ERROR = Status(code=Status.STATUS_CODE_ERROR)

HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags: whether its parent is of another process is known, and whether it is."""


def encode_spans(trace: RequestTrace, spans: Iterable[Span]) -> bytes:
    """Return the spans of one request as the content of a `ScopeSpans`."""
    trace_id, flags = bytes.fromhex(trace.trace_id), trace.flags | HAS_IS_REMOTE
    scope_spans = ScopeSpans()
    add = scope_spans.spans.add
    for span in spans:
        is_remote = span.span_id == trace.root and span.parent_id is not None
        message = add(
            trace_id=trace_id,
            span_id=span.span_id.to_bytes(8),
            flags=flags | IS_REMOTE if is_remote else flags,
            name=span.name,
            kind=int(span.kind),
            start_time_unix_nano=round(span.start_s * 1e9),
            end_time_unix_nano=round(span.end_s * 1e9),
            attributes=[KeyValue(key=key, value=_value(value)) for key, value in span.attributes.items()],
        )
        if span.parent_id is not None:
            message.parent_span_id = span.parent_id.to_bytes(8)
        if trace.state and is_remote:
            message.trace_state = trace.state
        if span.is_error:
            message.status.CopyFrom(ERROR)
    return scope_spans.SerializeToString()


class Envelope:
    """Wraps encoded spans into export requests of one process."""

    def __init__(self, attributes: Mapping[str, AttributeValue]) -> None:
        """`attributes` are those of the resource."""
        resource = Resource(attributes=[KeyValue(key=key, value=_value(value)) for key, value in attributes.items()])
        scope = ScopeSpans(scope=InstrumentationScope(name=SCOPE, version=version("hearth-gateway")))
        self._resource = ResourceSpans(resource=resource).SerializeToString()
        self._scope = scope.SerializeToString()

    def wrap(self, encoded: Iterable[bytes]) -> bytes:
        """Return an `ExportTraceServiceRequest` with all of them."""
        spans = ScopeSpans.FromString(b"".join([self._scope, *encoded]))
        resource = ResourceSpans.FromString(self._resource)
        resource.scope_spans.append(spans)
        return ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()


def rejected_spans(body: bytes) -> int:
    """Return how many spans a receiver that answered with success has rejected; 0 where its answer cannot be read."""
    try:
        return ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans
    except DecodeError:
        return 0


def resource_attributes(service_name: str) -> dict[str, AttributeValue]:
    """Return what identifies this process: name and version of the service, host and process."""
    host, pid = socket.gethostname(), os.getpid()
    return {
        "service.name": service_name,
        "service.version": version("hearth-gateway"),
        "service.instance.id": f"{host}:{pid}",
        "host.name": host,
        "process.pid": pid,
    }


def _value(value: AttributeValue) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=each) for each in value]))
