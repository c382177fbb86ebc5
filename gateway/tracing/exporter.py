"""Exports the spans of requests that have ended: in a thread of its own, in batches, from a bounded queue.

The event loop only appends a record to the queue. The thread builds, encodes and posts; a receiver that is slow or down
fills the queue, and what finds no room is dropped and counted. It yields between records, so that the loop never waits
for the interpreter for longer than the spans of one request take.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from threading import Event, Thread
from typing import Protocol

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.pipeline.record import Outcome
from gateway.runtime.event_log import LogFunction
from gateway.runtime.trace_context import RequestTrace
from gateway.tracing.spans import Span, spans_of

MAX_QUEUED = 2048
"""Requests that wait for their export: records of some kilobytes each."""

MAX_BATCH = 256
"""Requests of one export."""

EXPORT_INTERVAL_S = 5.0
"""Seconds after which fewer are exported, as by OpenTelemetry's own batch processors: each start of the thread evicts
what the event loop had in the CPU's caches."""

RUN, PAUSE_S = 8, 0.0002
"""After so many records the thread waits for so long: the loop may run."""

MAX_TRIES = 3
"""How often a batch is sent before it is dropped."""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 1.0, 30.0
"""Wait after a failed export; it doubles with each further one."""


ABORT_S = 1.0
"""Within which the thread ends once its export was aborted."""


class DropReason(StrEnum):
    """Why spans were lost."""

    QUEUE_FULL = "queue_full"
    """The export queue was full."""
    EXPORT_FAILED = "export_failed"
    """All tries of an export failed."""
    REJECTED = "rejected"
    """The receiver rejected the export with a status that is not retried."""
    SHUTDOWN = "shutdown"
    """They could not be sent in time when the gateway stopped."""


class ExportResult(Struct, frozen=True):
    """Result of one export: success, or why not."""

    error: str = ""
    may_retry: bool = False
    retry_after_s: float | None = None
    rejected_spans: int = 0
    """Spans that the receiver did not take although it answered with success."""


EncodeSpans = Callable[[RequestTrace, Iterable[Span]], bytes]
WrapSpans = Callable[[Iterable[bytes]], bytes]


class SpanSender(Protocol):
    """Posts export requests. All but `abort` are called in the exporter's thread."""

    def send(self, body: bytes, timeout_s: float) -> ExportResult:
        """Post an export request within so many seconds. Raises nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def abort(self) -> None:
        """End an export that waits, from another thread."""
        ...


class SpanExporter(Collector):
    """One per gateway process; also shows its counters as metrics."""

    def __init__(
        self,
        *,
        encode: EncodeSpans,
        wrap: WrapSpans,
        sender: SpanSender,
        timeout_s: float,
        log_event: LogFunction,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.exported_traces = 0
        """Requests whose spans the receiver has taken."""
        self.rejected_spans = 0
        self.dropped: Counter[DropReason] = Counter()
        """Requests whose spans were lost."""
        self._encode = encode
        self._wrap = wrap
        self._sender = sender
        self._timeout_s = timeout_s
        self._log_event = log_event
        self._max_queued = max_queued
        self._queue: deque[Outcome] = deque()
        self._wake, self._stopping = Event(), Event()
        self._stop_by_s: float | None = None
        self._failures = 0
        self._is_exporting = False
        self._thread = Thread(target=self._run, name="trace exporter", daemon=True)

    # -- called by the event loop ----------------------------------------------------------------------------------

    def export(self, outcome: Outcome) -> None:
        """Queue the record of a sampled request, or drop it."""
        queued = len(self._queue)
        if queued >= self._max_queued:
            self.dropped[DropReason.QUEUE_FULL] += 1
            return
        self._queue.append(outcome)
        if queued + 1 == MAX_BATCH:
            self._wake.set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether requests are queued or being exported."""
        return bool(self._queue) or self._is_exporting

    def cpu_s(self) -> float:
        """Return the CPU seconds of its thread so far, while that runs."""
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident or 0))

    def close(self, timeout_s: float) -> int:
        """Export what is queued, for at most `timeout_s` and a moment. Returns how many requests were lost."""
        lost_before = self.dropped.total()
        self._stop_by_s = time.monotonic() + timeout_s
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._sender.abort()
                self._thread.join(ABORT_S)
        self.dropped[DropReason.SHUTDOWN] += len(self._queue)
        self._queue.clear()
        return self.dropped.total() - lost_before

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the metric families of this moment."""
        yield CounterMetricFamily(
            "hearth_traces_exported", "Sampled requests whose spans the receiver accepted.", value=self.exported_traces
        )
        dropped = CounterMetricFamily(
            "hearth_traces_dropped", "Sampled requests whose spans were lost.", labels=("reason",)
        )
        for reason in DropReason:
            dropped.add_metric((reason.value,), self.dropped[reason])
        yield dropped
        yield CounterMetricFamily(
            "hearth_trace_spans_rejected", "Spans that the receiver rejected.", value=self.rejected_spans
        )

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._export_until_stopped()
        finally:
            self._sender.close()

    def _export_until_stopped(self) -> None:
        while True:
            self._wake.wait(EXPORT_INTERVAL_S)
            self._wake.clear()
            while self._queue:
                self._is_exporting = True
                self._export_batch()
                self._is_exporting = False
                if self._is_out_of_time():
                    return
            if self._stopping.is_set():
                return

    def _export_batch(self) -> None:
        encoded: list[bytes] = []
        while self._queue and len(encoded) < MAX_BATCH:
            outcome = self._queue.popleft()
            try:
                assert outcome.trace is not None  # noqa: S101 - the tracer exports requests of its traces only
                encoded.append(self._encode(outcome.trace, spans_of(outcome)))
            except Exception as error:  # noqa: BLE001 - of this request alone: the others are exported
                self.dropped[DropReason.EXPORT_FAILED] += 1
                self._report(f"spans could not be built: {error!r}")
            if len(encoded) % RUN == 0:
                self._stopping.wait(PAUSE_S)
        if encoded:
            self._post(self._wrap(encoded), len(encoded))

    def _post(self, body: bytes, count: int) -> None:
        """Send a batch, more than once if that may help; count it."""
        for tries_left in reversed(range(MAX_TRIES)):
            result = self._sender.send(body, self._time_left())
            if not result.error:
                self.exported_traces += count
                self.rejected_spans += result.rejected_spans
                self._recover()
                return
            self._report(result.error)
            is_last = not result.may_retry or tries_left == 0
            if self._is_out_of_time():
                self.dropped[DropReason.SHUTDOWN] += count
                return
            self._stopping.wait(self._backoff_s(result))
            if is_last or (self._stopping.is_set() and self._is_out_of_time()):
                self.dropped[DropReason.EXPORT_FAILED if result.may_retry else DropReason.REJECTED] += count
                return

    def _backoff_s(self, result: ExportResult) -> float:
        wait_s = FIRST_BACKOFF_S * 2.0 ** min(self._failures - 1, 10)
        return min(MAX_BACKOFF_S, wait_s if result.retry_after_s is None else result.retry_after_s)

    def _time_left(self) -> float:
        if self._stop_by_s is None:
            return self._timeout_s
        return max(0.001, min(self._timeout_s, self._stop_by_s - time.monotonic()))

    def _is_out_of_time(self) -> bool:
        return self._stop_by_s is not None and time.monotonic() >= self._stop_by_s

    def _report(self, error: str) -> None:
        """Log the first of several failures."""
        self._failures += 1
        if self._failures == 1:
            self._log_event("warning", "trace_export_failed", error=error)

    def _recover(self) -> None:
        if self._failures:
            self._failures = 0
            self._log_event("info", "trace_export_recovered", dropped=self.dropped.total())
