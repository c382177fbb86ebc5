"""Metrics of a process: its build, exceptions in its event loop, and the exchange of state with other processes."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from gateway.replica_sync.sync import ReplicaSync
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import LOOP_CONTEXT_KEY
from gateway.runtime.metric_families import OTHER, Family

if TYPE_CHECKING:
    from gateway.replica_sync.hub import UpdateHub
    from gateway.replica_sync.redis_bridge import RedisBridge  # redis-py takes ten megabytes.

MAX_LOGGED_KINDS = 256
"""Kinds of exceptions that are logged; more are only counted."""


def make_registry() -> CollectorRegistry:
    """Return a new registry with the metrics of this process; gateways in one interpreter share none."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(BuildCollector())
    return registry


class BuildCollector(Collector):
    """Shows the versions of the gateway and of Python."""

    def collect(self) -> Iterator[Family]:
        """Return one info family."""
        versions = {"version": version("hearth-gateway"), "python": platform.python_version()}
        yield InfoMetricFamily("hearth_build", "Version of the gateway.", value=versions)


class CallbackErrorHandler(Collector):
    """The exception handler of one event loop: counts exceptions in timers, callbacks and endless tasks by name, and
    logs each kind once. See `gateway/runtime/guard.py`.
    """

    def __init__(self, log_event: LogFunction, *, after: Callable[[], None] = lambda: None) -> None:
        """`after` is called after each exception that a guard has caught, to repair what it left half done."""
        self._log_event = log_event
        self._after = after
        self._logged: set[tuple[str, str, str]] = set()
        self.caught: Counter[str] = Counter()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count an exception. One that no guard names is `other`, and is logged by asyncio as well."""
        name = context.get(LOOP_CONTEXT_KEY)
        self.caught[name or OTHER] += 1
        if name is None:
            loop.default_exception_handler(context)
            return
        error = context["exception"]
        kind = (name, type(error).__name__, _place(error))
        if kind not in self._logged and len(self._logged) < MAX_LOGGED_KINDS:
            self._logged.add(kind)
            self._log_event("error", "callback_failed", loop=name, error=kind[1], location=kind[2])
        self._after()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the metric family of this moment."""
        words = "Exceptions caught in timers, callbacks and endless tasks, which continue."
        errors = CounterMetricFamily("hearth_callback_errors", words, labels=("loop",))
        for name, count in self.caught.items():
            errors.add_metric((name,), count)
        yield errors


def _place(error: BaseException) -> str:
    """Return file and line where it was raised. Its message may contain what a client has sent, and is not logged."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"


class ReplicaSyncCollector(Collector):
    """Shows the updates that a worker exchanges with other gateways."""

    def __init__(self, sharing: ReplicaSync) -> None:
        self._sharing = sharing

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        sharing = self._sharing
        applier = sharing.applier
        yield CounterMetricFamily(
            "hearth_replica_sync_updates_sent", "Updates sent to other gateways and workers.", sharing.sent
        )
        yield CounterMetricFamily(
            "hearth_replica_sync_updates_received", "Updates received and applied.", applier.applied
        )
        yield CounterMetricFamily(
            "hearth_replica_sync_history_updates", "Replayed updates applied after a start.", sharing.history_updates
        )
        lost = CounterMetricFamily("hearth_replica_sync_updates_lost", "Updates lost, by cause.", labels=("reason",))
        for reason, count in (
            ("not_connected", sharing.unsent),
            ("buffer_full", sharing.overflowed),
            ("undecodable", sharing.unreadable),
            ("invalid", applier.rejected),
            ("gap", applier.gaps),
        ):
            lost.add_metric((reason,), count)
        yield lost
        yield GaugeMetricFamily(
            "hearth_replica_sync_peers", "Other workers and gateways with recent updates.", applier.replica_count
        )
        yield GaugeMetricFamily(
            "hearth_kv_index_connected", "1 while the index process is connected.", float(sharing.is_connected)
        )


class HubCollector(Collector):
    """Shows what passes through the index process: between workers, and to and from Redis."""

    def __init__(self, hub: UpdateHub, bridge: RedisBridge | None) -> None:
        self._hub = hub
        self._bridge = bridge

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        hub, bridge = self._hub, self._bridge
        yield GaugeMetricFamily("hearth_replica_sync_workers", "Connected workers.", hub.workers)
        yield GaugeMetricFamily(
            "hearth_replica_sync_history_bytes", "Updates kept for workers that join.", hub.history_bytes
        )
        dropped = CounterMetricFamily(
            "hearth_replica_sync_dropped",
            "Batches dropped because the target did not read them in time.",
            labels=("target",),
        )
        dropped.add_metric(("worker",), hub.dropped_frames)
        if bridge is not None:
            dropped.add_metric(("redis",), bridge.dropped)
        yield dropped
        if bridge is None:
            return
        yield GaugeMetricFamily(
            "hearth_redis_connected", "1 while updates pass through Redis.", float(bridge.is_connected)
        )
        yield CounterMetricFamily("hearth_redis_entries_written", "Entries written to the stream.", bridge.written)
        yield CounterMetricFamily(
            "hearth_redis_entries_read", "Entries read from the stream, those of this host included.", bridge.read
        )
        yield CounterMetricFamily(
            "hearth_redis_invalid_entries",
            "Stream entries, or batches in one, that are not from Hearth.",
            bridge.strange,
        )
        words = "Age of updates when they are read: our own, from writing to reading back."
        yield GaugeMetricFamily("hearth_redis_staleness_seconds", words, bridge.staleness_s())
