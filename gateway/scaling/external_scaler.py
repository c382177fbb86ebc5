"""KEDA's external scaler: the service `externalscaler.ExternalScaler` on a gRPC listener of its own.

The value of the metric is the number of engines, the target is 1, so that the HPA's result is that number
(`metricType: AverageValue`). A call without an answer ends with an error: KEDA then keeps the count by `fallback`.
The streamed call sends the state at once and on each change, so that a pool at zero starts without a poll.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from gateway.ext_proc.http2.connection import HandlerFactory
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.scaling.messages_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from gateway.scaling.scaler_target import INVALID_ARGUMENT, ScalerFault, ScalerTarget, read_target

SERVICE = "/externalscaler.ExternalScaler/"

METRIC = "hearth-desired-engines"
"""Name of the one metric of each trigger."""

TARGET_ENGINES = 1
"""Engines that one pod of the scaled workload counts for."""


class ScalerAnswer(NamedTuple):
    """What a trigger is answered."""

    engines: int
    is_active: bool
    """Whether the workload must have a pod at all."""


class ScalerBackend(Protocol):
    """Where the answers come from."""

    def answer(self, target: ScalerTarget) -> ScalerAnswer:
        """Return the engines that a target should have. Raises `ScalerFault` where this gateway cannot state it."""
        ...

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after each decision. Returns the function that ends this."""
        ...


@dataclass(slots=True)
class CallCounts:
    """Calls of the external scaler, by gRPC status."""

    by_status: dict[int, int]

    def add(self, status: int) -> None:
        """Count one call."""
        self.by_status[status] = self.by_status.get(status, 0) + 1


class ExternalScaler:
    """The service. One per listener."""

    def __init__(self, backend: ScalerBackend) -> None:
        self.backend = backend
        self.calls = CallCounts({})
        self.open_watches = 0

    def services(self) -> dict[bytes, HandlerFactory]:
        """Return the handler of each method by its path."""
        return {
            f"{SERVICE}IsActive".encode(): lambda stream: ScalerCall(self, stream, self._is_active),
            f"{SERVICE}StreamIsActive".encode(): lambda stream: ActivityStream(self, stream),
            f"{SERVICE}GetMetricSpec".encode(): lambda stream: ScalerCall(self, stream, self._metric_spec),
            f"{SERVICE}GetMetrics".encode(): lambda stream: ScalerCall(self, stream, self._metrics),
        }

    def _is_active(self, message: bytes) -> bytes:
        target = target_of(ScaledObjectRef.FromString(message))
        return IsActiveResponse(result=self.backend.answer(target).is_active).SerializeToString()

    def _metric_spec(self, message: bytes) -> bytes:
        target_of(ScaledObjectRef.FromString(message))
        spec = MetricSpec(metric_name=METRIC, target_size=TARGET_ENGINES, target_size_float=float(TARGET_ENGINES))
        return GetMetricSpecResponse(metric_specs=[spec]).SerializeToString()

    def _metrics(self, message: bytes) -> bytes:
        request = GetMetricsRequest.FromString(message)
        target = target_of(request.scaled_object_ref)
        if request.metric_name not in ("", METRIC):
            raise ScalerFault(INVALID_ARGUMENT, f"metricName: this scaler has one metric, {METRIC}")
        engines = self.backend.answer(target).engines
        # KEDA reads the float where it is above 0, else the integer.
        value = MetricValue(metric_name=METRIC, metric_value=engines, metric_value_float=float(engines))
        return GetMetricsResponse(metric_values=[value]).SerializeToString()


def target_of(reference: ScaledObjectRef) -> ScalerTarget:
    """Return what a ScaledObject's trigger refers to. Raises `ScalerFault`."""
    return read_target(dict(reference.scaler_metadata))


class ScalerCall(GrpcStreamHandler):
    """One call with one answer."""

    __slots__ = ("_answer", "_scaler", "_stream")

    def __init__(self, scaler: ExternalScaler, stream: GrpcStream, answer: Callable[[bytes], bytes]) -> None:
        self._scaler = scaler
        self._stream = stream
        self._answer = answer

    def on_message(self, message: bytes) -> None:
        try:
            answer = self._answer(message)
        except ScalerFault as fault:
            self._fail(fault)
        except DecodeError:
            self._fail(ScalerFault(INVALID_ARGUMENT, "the message cannot be decoded"))
        else:
            self._scaler.calls.add(0)
            self._stream.send(answer)
            self._stream.finish()

    def on_end(self) -> None:
        self._fail(ScalerFault(INVALID_ARGUMENT, "the call has no message"))

    def on_too_large(self) -> None:
        self._fail(ScalerFault(INVALID_ARGUMENT, "the message is too long"))

    def _fail(self, fault: ScalerFault) -> None:
        self._scaler.calls.add(fault.status)
        self._stream.finish(fault.status, fault.message)


class ActivityStream(GrpcStreamHandler):
    """A stream of states: the first at once, then each change. Ends with an error while there is no answer."""

    __slots__ = ("_end_watch", "_reported", "_scaler", "_stream", "_target")

    def __init__(self, scaler: ExternalScaler, stream: GrpcStream) -> None:
        self._scaler = scaler
        self._stream = stream
        self._target: ScalerTarget | None = None
        self._reported: bool | None = None
        self._end_watch: Callable[[], None] | None = None

    def on_message(self, message: bytes) -> None:
        if self._target is not None:
            return
        try:
            target = target_of(ScaledObjectRef.FromString(message))
            self._end_watch = self._scaler.backend.watch(self._notify)
        except ScalerFault as fault:
            self._fail(fault)
            return
        except DecodeError:
            self._fail(ScalerFault(INVALID_ARGUMENT, "the message cannot be decoded"))
            return
        self._target = target
        self._scaler.open_watches += 1
        self._notify()

    def on_end(self) -> None:
        """The request is complete; states go on."""
        if self._target is None:
            self._fail(ScalerFault(INVALID_ARGUMENT, "the call has no message"))

    def on_too_large(self) -> None:
        self._fail(ScalerFault(INVALID_ARGUMENT, "the message is too long"))

    def on_lost(self) -> None:
        self._leave()

    def on_drain(self) -> None:
        """End: KEDA connects to another gateway."""
        self._leave()
        self._stream.finish()

    def _notify(self) -> None:
        if self._target is None or self._end_watch is None:
            return
        try:
            is_active = self._scaler.backend.answer(self._target).is_active
        except ScalerFault as fault:
            self._fail(fault)
            return
        if is_active != self._reported:
            self._reported = is_active
            self._stream.send(IsActiveResponse(result=is_active).SerializeToString())

    def _fail(self, fault: ScalerFault) -> None:
        self._leave()
        self._scaler.calls.add(fault.status)
        self._stream.finish(fault.status, fault.message)

    def _leave(self) -> None:
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
            self._scaler.open_watches -= 1
