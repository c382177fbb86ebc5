"""Spans as OTLP: the official protobuf messages, encoded request by request. The only module that imports them.

Needs the extra `hearth-gateway[otel]`. Fields are encoded once and remembered, since nearly all are seen again, and
messages are joined by their bytes: to build each span and attribute as an object takes five times as long.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from struct import pack
from typing import Any, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from gateway.runtime.protobuf_wire import PAYLOAD, encode_field, varint
from gateway.runtime.trace_context import RequestTrace
from gateway.tracing.spans import AttributeValue, Span

SCOPE = "hearth"

REQUEST_RESOURCE_SPANS, RESOURCE_SPANS_SCOPE_SPANS, SCOPE_SPANS_SPANS, SPAN_ATTRIBUTES, KEY_VALUE_VALUE = (
    message.DESCRIPTOR.fields_by_name[name].number
    for message, name in (
        (ExportTraceServiceRequest, "resource_spans"),
        (ResourceSpans, "scope_spans"),
        (ScopeSpans, "spans"),
        (SpanMessage, "attributes"),
        (KeyValue, "value"),
    )
)

ERROR = SpanMessage(status=Status(code=Status.STATUS_CODE_ERROR)).SerializeToString()

HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags: whether its parent is of another process is known, and whether it is."""


def encode_spans(trace: RequestTrace, spans: Iterable[Span]) -> bytes:
    """Return the spans of one request as fields of a `ScopeSpans`."""
    trace_id, flags = SpanMessage(trace_id=bytes.fromhex(trace.trace_id)).SerializeToString(), trace.flags
    return b"".join([_encode_span(trace, trace_id, flags | HAS_IS_REMOTE, span) for span in spans])


def _encode_span(trace: RequestTrace, trace_id: bytes, flags: int, span: Span) -> bytes:
    """`trace_id`: as a field of a span."""
    parent = span.parent_id
    parts = [
        trace_id,
        _named(span.name, span.kind.value),
        TIMED(SPAN_ID, span.span_id.to_bytes(8), START, round(span.start_s * 1e9), END, round(span.end_s * 1e9)),
    ]
    if parent is not None:
        parts += (PARENT_ID, parent.to_bytes(8))
    if span.span_id == trace.root and parent is not None:
        parts.append(_remote(flags | IS_REMOTE, trace.state or ""))
    else:
        parts.append(_remote(flags, ""))
    if span.is_error:
        parts.append(ERROR)
    for key, value in span.attributes.items():
        if type(value) is float:
            parts += (_real_head(key), pack("<d", value))
        elif type(value) is int and value > PAYLOAD:
            number = varint(value)
            parts += (_integer_head(key, len(number)), number)
        elif key in UNIQUE:
            text = str(value).encode()
            parts += (_text_head(key, len(text)), text)
        else:
            parts.append(_attribute(key, value))
    return encode_field(SCOPE_SPANS_SPANS, *parts)


def _head(**fields: Any) -> bytes:
    """Return what precedes the content of a field of a span, whose content is eight bytes."""
    return SpanMessage(**fields).SerializeToString()[:-8]


SPAN_ID, PARENT_ID = _head(span_id=bytes(8)), _head(parent_span_id=bytes(8))
START, END = _head(start_time_unix_nano=1), _head(end_time_unix_nano=1)

TIMED = struct.Struct(f"<{len(SPAN_ID)}s8s{len(START)}sQ{len(END)}sQ").pack
"""Packs the fields that each span has."""

UNIQUE = frozenset({"hearth.request_id", "hearth.coalesced_with"})
"""Attributes whose values are never seen again, and are not remembered."""


@lru_cache(maxsize=1024)
def _named(name: str, kind: int) -> bytes:
    """Return name and kind as fields of a `Span`."""
    return SpanMessage(name=name, kind=cast("SpanMessage.SpanKind.ValueType", kind)).SerializeToString()


@lru_cache(maxsize=64)
def _remote(flags: int, state: str) -> bytes:
    """Return flags and state as fields of a `Span`."""
    return SpanMessage(flags=flags, trace_state=state).SerializeToString()


@lru_cache(maxsize=4096, typed=True)
def _attribute(key: str, value: AttributeValue) -> bytes:
    """Return an attribute as a field of a `Span`. Most values are seen again and again."""
    return encode_field(SPAN_ATTRIBUTES, KeyValue(key=key, value=_value(value)).SerializeToString())


@lru_cache(maxsize=256)
def _text_head(key: str, length: int) -> bytes:
    """Return all of an attribute of text but its last `length` bytes, the text."""
    value = KeyValue(key=key, value=AnyValue(string_value="-" * length))
    return encode_field(SPAN_ATTRIBUTES, value.SerializeToString())[: -length or None]


@lru_cache(maxsize=256)
def _integer_head(key: str, length: int) -> bytes:
    """Return all of an attribute of a whole number but its last `length` bytes, the number."""
    value = KeyValue(key=key, value=AnyValue(int_value=1 << 7 * (length - 1)))
    return encode_field(SPAN_ATTRIBUTES, value.SerializeToString())[:-length]


@lru_cache(maxsize=256)
def _real_head(key: str) -> bytes:
    """Return all of such an attribute but its last eight bytes, the value."""
    any_value = AnyValue(double_value=1.0).SerializeToString()
    return encode_field(
        SPAN_ATTRIBUTES, KeyValue(key=key).SerializeToString(), encode_field(KEY_VALUE_VALUE, any_value)
    )[:-8]


class Envelope:
    """Wraps encoded spans into export requests of one process."""

    def __init__(self, attributes: Mapping[str, AttributeValue]) -> None:
        """`attributes` are those of the resource."""
        resource = Resource(attributes=[KeyValue(key=key, value=_value(value)) for key, value in attributes.items()])
        scope = InstrumentationScope(name=SCOPE, version=version("hearth-gateway"))
        self._resource = ResourceSpans(resource=resource).SerializeToString()
        self._scope = ScopeSpans(scope=scope).SerializeToString()

    def wrap(self, encoded: Iterable[bytes]) -> bytes:
        """Return an `ExportTraceServiceRequest` with all of them."""
        scope_spans = encode_field(RESOURCE_SPANS_SCOPE_SPANS, self._scope, *encoded)
        return encode_field(REQUEST_RESOURCE_SPANS, self._resource, scope_spans)


def rejected_spans(body: bytes) -> int:
    """Return how many spans a receiver that answered with success has rejected; 0 where its answer cannot be read."""
    try:
        return max(0, ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
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
