"""KEDA's side of its external scaler: a real gRPC client, with messages declared here from KEDA's own field numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

STRING, BOOL, INT64, DOUBLE, MESSAGE = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_BOOL,
    FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_DOUBLE,
    FieldDescriptorProto.TYPE_MESSAGE,
)

MESSAGES: dict[str, list[tuple[str, int, int, str | None]]] = {
    "Entry": [("key", 1, STRING, None), ("value", 2, STRING, None)],
    "ScaledObjectRef": [("name", 1, STRING, None), ("namespace", 2, STRING, None), ("metadata", 3, MESSAGE, "*Entry")],
    "IsActiveResponse": [("result", 1, BOOL, None)],
    "MetricSpec": [("name", 1, STRING, None), ("target", 2, INT64, None), ("target_float", 3, DOUBLE, None)],
    "GetMetricSpecResponse": [("specs", 1, MESSAGE, "*MetricSpec")],
    "GetMetricsRequest": [("ref", 1, MESSAGE, "ScaledObjectRef"), ("name", 2, STRING, None)],
    "MetricValue": [("name", 1, STRING, None), ("value", 2, INT64, None), ("value_float", 3, DOUBLE, None)],
    "GetMetricsResponse": [("values", 1, MESSAGE, "*MetricValue")],
}
"""Fields as (name, number, type, message): a map is a repeated message of key and value, `*` marks repeated ones."""


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="keda_of_tests.proto", package="keda_of_tests", syntax="proto3")
    for name, fields in MESSAGES.items():
        message: DescriptorProto = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            repeated = of is not None and of.startswith("*")
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            held = message.field.add(name=field, number=number, type=kind, label=label)
            if of is not None:
                held.type_name = f".keda_of_tests.{of.removeprefix('*')}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"keda_of_tests.{name}")) for name in MESSAGES}


WIRE = _classes()

CALL_S = 20.0


class KedaClient:
    """One connection of KEDA's operator."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def is_active(self, metadata: Mapping[str, str]) -> bool:
        answer = await self._call("IsActive", reference(metadata), "IsActiveResponse")
        return bool(answer.result)

    async def metric_spec(self, metadata: Mapping[str, str]) -> list[tuple[str, int, float]]:
        answer = await self._call("GetMetricSpec", reference(metadata), "GetMetricSpecResponse")
        return [(each.name, each.target, each.target_float) for each in answer.specs]

    async def metrics(
        self, metadata: Mapping[str, str], name: str = "hearth-desired-engines"
    ) -> list[tuple[str, int, float]]:
        request = WIRE["GetMetricsRequest"](ref=reference(metadata), name=name)
        answer = await self._call("GetMetrics", request, "GetMetricsResponse")
        return [(each.name, each.value, each.value_float) for each in answer.values]

    async def desired(self, metadata: Mapping[str, str]) -> float:
        """The value as KEDA reads it: the float where it is above 0, else the integer."""
        ((_, value, value_float),) = await self.metrics(metadata)
        return value_float if value_float > 0 else float(value)

    async def activity(self, metadata: Mapping[str, str]) -> AsyncIterator[bool]:
        call = self._channel.unary_stream(
            "/externalscaler.ExternalScaler/StreamIsActive",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=WIRE["IsActiveResponse"].FromString,
        )(reference(metadata))
        try:
            async for answer in call:
                yield bool(answer.result)
        finally:
            call.cancel()

    async def _call(self, method: str, request: Any, answer: str) -> Any:
        return await self._channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=WIRE[answer].FromString,
        )(request, timeout=CALL_S)


def reference(metadata: Mapping[str, str]) -> Any:
    """What KEDA sends of a ScaledObject: its name and the trigger's whole metadata."""
    message = WIRE["ScaledObjectRef"](name="vllm", namespace="models")
    for key, value in metadata.items():
        message.metadata.add(key=key, value=value)
    return message


@asynccontextmanager
async def keda(where: str, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[KedaClient]:
    """A connection to a scaler at HOST:PORT."""
    options = (("grpc.enable_http_proxy", 0),)
    channel = (
        grpc.aio.insecure_channel(where, options=options)
        if credentials is None
        else grpc.aio.secure_channel(where, credentials, options=options)
    )
    try:
        yield KedaClient(channel)
    finally:
        await channel.close()
        await asyncio.sleep(0)
