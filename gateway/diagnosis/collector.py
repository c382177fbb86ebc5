"""Builds the facts of the fleet every few seconds from what the watcher scrapes, agents report and requests show.

Runs beside the request path: a pod's metrics page is read when the watcher has it anyway, and records of requests are
sampled. Facts hold no text of requests, no key and no path.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TypeVar

from diagnosis.distribution import Distribution, distribution_of
from diagnosis.facts import (
    CACHED_TOKENS,
    KV_EVENTS,
    PREFIX_CACHING,
    PRIORITY,
    EngineWindow,
    FleetFacts,
    GatewayLoad,
    PodObservation,
)
from diagnosis.readings import WINDOW_S, PodHistory, joined_flags, joined_windows, load_counts, read_counts
from gateway.diagnosis.request_sample import RequestSample
from gateway.diagnosis.server_facts import (
    build_facts,
    engine_flags,
    environment_facts,
    hardware_facts,
    shown_model,
    without_speculation,
)
from gateway.discovery.source import ServerReport
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.watcher import FleetWatcher
from gateway.runtime.guard import report_exception
from routing.decision.router import Router
from routing.pods import Pod, PodState
from routing.server_settings import NO_SETTINGS
from scorers.prefill_time import PrefillTime

T = TypeVar("T")

MIN_PAGE_INTERVAL_S = 4.0
"""Between two pages of one pod that are read; twice as long above `MANY_PODS`."""

MANY_PODS = 32

LAG_INTERVAL_S = 0.25
"""Between two timers whose lateness is measured."""

MAX_LAGS = 240
"""Lateness values that are kept, and times of Redis: more than those of a window."""

SLICE_PODS = 8
"""Pods whose facts are made at a stretch, in about a millisecond: requests are served between two slices."""

MAX_VERSION_REQUESTS = 4
"""Versions that are requested in one look."""

MAX_PODS = 2048
"""Pods of which pages are kept."""


class FactCollector:
    """One per gateway. `clock` is loop time, `wall_clock` Unix time; facts have Unix times."""

    def __init__(
        self,
        router: Router,
        watcher: FleetWatcher,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        count_fresh: Callable[[], None],
        wanted: Callable[[], frozenset[str]],
        single_services: frozenset[str] = frozenset(),
        name: str = "",
    ) -> None:
        """`count_fresh` passes on records that are in a batch; `wanted` returns the features that the gateway uses."""
        self.requests = RequestSample(router.fleet, wall_clock(), self._queue_s)
        self._router = router
        self._watcher = watcher
        self._clock = clock
        self._wall_clock = wall_clock
        self._count_fresh = count_fresh
        self._wanted = wanted
        self._single_services = single_services
        self._name = name
        self._histories: dict[str, PodHistory] = {}
        self._reported: dict[str, tuple[float, PodHistory]] = {}
        """What plugins report by way of the agent, and when they last did."""
        self._read_s: dict[str, float] = {}
        self._versions: dict[str, tuple[float | None, str | None]] = {}
        """Start of a pod's process, as its metrics have it, and the version that it reported then."""
        self._offsets_s: dict[str, deque[float]] = {}
        self._queues_s: dict[str, float] = {}
        self._lags: deque[tuple[float, float]] = deque(maxlen=MAX_LAGS)
        """Unix time and seconds; the next likewise."""
        self._redis: deque[tuple[float, float]] = deque(maxlen=MAX_LAGS)
        self._loads = deque([(wall_clock(), time.process_time(), 0)])
        """Unix time, CPU seconds and requests until then, at the looks of the window."""

    def take_page(self, url: str, page: bytes, date: str | None) -> None:
        """Read a metrics page that the watcher has scraped, unless the pod's last one is recent."""
        now_s, many = self._clock(), len(self._watcher.pods) > MANY_PODS
        if now_s - self._read_s.get(url, float("-inf")) < MIN_PAGE_INTERVAL_S * (2 if many else 1):
            return
        if url not in self._histories and len(self._histories) >= MAX_PODS:
            return
        self._read_s[url] = now_s
        self._histories.setdefault(url, PodHistory()).add(self._wall_clock(), read_counts(page))
        if (offset_s := _clock_offset(date, self._wall_clock())) is not None:
            self._offsets_s.setdefault(url, deque(maxlen=5)).append(offset_s)

    def note_lag(self, seconds: float) -> None:
        """Note by how much a timer was late."""
        self._lags.append((self._wall_clock(), max(0.0, seconds)))

    def note_redis(self, seconds: float) -> None:
        """Note how long a command to Redis took."""
        self._redis.append((self._wall_clock(), seconds))

    async def collect(self) -> FleetFacts:
        """Return the facts of this moment, and begin the next step of the requests' window."""
        now_s = self._wall_clock()
        self._count_fresh()
        self.requests.step(now_s)
        watched = self._watcher.pods
        await self._read_versions(watched)
        self._forget_gone({pod.url for pod in watched})
        reports = self._watcher.census.servers()
        pods = []
        for number, pod in enumerate(watched, 1):
            try:
                pods.append(self._observation(pod, reports.get(pod.url), now_s))
            except Exception as error:  # noqa: BLE001 - reported; one pod must not end the diagnosis of all
                report_exception("facts of a pod", error)
            if number % SLICE_PODS == 0:
                await asyncio.sleep(0)
        offsets = {url: _smallest_offset(held) for url, held in self._offsets_s.items() if held}
        return FleetFacts(
            at_s=now_s,
            pods=tuple(pods),
            gateways=(self._load(now_s),),
            clock_offsets_s=offsets,
            clocks_read_at_s=now_s if offsets else None,
            times=self.requests.times(),
            wanted_features=dict.fromkeys({pod.pool for pod in pods}, self._wanted()),
            single_services=self._single_services,
        )

    def _observation(self, watched: WatchedPod, report: ServerReport | None, now_s: float) -> PodObservation:
        known = self._router.fleet.pod(watched.url)
        facts = watched.discovered.facts
        if facts.version is None and (version := self._versions.get(watched.url, (None, None))[1]) is not None:
            facts = replace(facts, version=version)
        history = self._histories.get(watched.url)
        scraped = history.windows() if history is not None else ()
        windows = joined_windows(scraped, self._reported_windows(watched.url, report, now_s))
        settings = NO_SETTINGS if report is None else report.settings
        # What agents report is read once at a server's start and valid as long as its record is renewed.
        read_at_s = now_s if report is None else now_s - max(0.0, self._clock() - report.read_at_s)
        flags = joined_flags(engine_flags(settings, facts, read_at_s), None if history is None else history.flags())
        if scraped:
            speculates = any(window.speculation is not None for window in windows)
            flags = without_speculation(flags, has_counters=speculates, read_at_s=now_s)
        self._note_queue(watched.url, windows)
        role = facts.effective_role if known is None or not known.engines else known.engines[0].role
        return PodObservation(
            address=watched.url,
            pool=shown_model(watched.discovered.pool or "" if known is None else known.pool_label),
            model=_model_of(known),
            role=role,
            region=None if known is None else known.region,
            is_ready=known is not None and known.state is PodState.READY,
            ready_since_s=_unix(known, now_s, self._clock()),
            engines=windows,
            requests=self.requests.view_of(watched.url),
            flags=flags,
            build=build_facts(settings, facts, read_at_s),
            environment=environment_facts(settings, read_at_s),
            hardware=hardware_facts(report, facts, read_at_s),
            metadata_service=facts.bootstrap,
        )

    def _reported_windows(self, url: str, report: ServerReport | None, now_s: float) -> tuple[EngineWindow, ...]:
        """Return the windows of what a pod's plugin reports; empty without one."""
        loads = () if report is None else report.loads
        if report is not None and loads:
            age_s = max(0.0, self._clock() - report.read_at_s) + max(load.age_s for load in loads)
            last_s, history = self._reported.setdefault(url, (0.0, PodHistory()))
            # Between two records of its agent the same report is seen again.
            if now_s - age_s >= last_s + MIN_PAGE_INTERVAL_S / 2:
                history.add(now_s - age_s, {load.rank: load_counts(load) for load in loads})
                self._reported[url] = (now_s - age_s, history)
        held = self._reported.get(url)
        return () if held is None else held[1].windows()

    async def _read_versions(self, watched: Sequence[WatchedPod]) -> None:
        """Request the version of a few pods whose discovery reports none, once for each start of theirs."""
        starts: dict[str, float | None] = {}
        for pod in watched:
            started_s = None if pod.metrics is None else pod.metrics.started_s
            is_known = pod.url in self._versions and self._versions[pod.url][0] == started_s
            if is_known or pod.metrics is None or pod.discovered.facts.version is not None:
                continue
            starts[pod.url] = started_s
            if len(starts) >= MAX_VERSION_REQUESTS:
                break
        # At the same time: pods that do not answer delay a look once.
        found = await asyncio.gather(*(self._watcher.read_version(url) for url in starts))
        for (url, started_s), version in zip(starts.items(), found, strict=True):
            self._versions[url] = (started_s, version)

    def _note_queue(self, url: str, windows: tuple[EngineWindow, ...]) -> None:
        held = [window.queue for window in windows if window.queue is not None and window.queue.count > 0]
        count = sum(each.count for each in held)
        if count:
            self._queues_s[url] = sum(each.total for each in held) / count
        else:
            self._queues_s.pop(url, None)

    def _queue_s(self, url: str) -> float | None:
        return self._queues_s.get(url)

    def _load(self, now_s: float) -> GatewayLoad:
        cpu_now_s, seen_now = time.process_time(), self.requests.seen
        self._loads.append((now_s, cpu_now_s, seen_now))
        while not now_s - WINDOW_S <= self._loads[0][0] <= now_s:  # Later than now: the clock was set back.
            self._loads.popleft()
        start_s, cpu_s, seen = self._loads[0]
        took_s = now_s - start_s
        return GatewayLoad(
            start_s=start_s,
            end_s=now_s,
            name=self._name,
            cpu=(cpu_now_s - cpu_s) / took_s if took_s > 0 else None,
            loop_lag=_within(self._lags, now_s),
            requests=float(seen_now - seen),
            redis=_within(self._redis, now_s),
        )

    def _forget_gone(self, present: set[str]) -> None:
        _keep(self._histories, present)
        _keep(self._reported, present)
        _keep(self._read_s, present)
        _keep(self._versions, present)
        _keep(self._offsets_s, present)
        _keep(self._queues_s, present)


def wanted_features(router: Router, *, follows_kv_events: bool, has_priorities: bool) -> frozenset[str]:
    """Return the features of engines that a gateway with these settings uses."""
    is_warm = any(isinstance(scorer, PrefillTime) for scorer in router.scorers)
    wanted = {
        PREFIX_CACHING: is_warm,
        CACHED_TOKENS: is_warm,
        KV_EVENTS: follows_kv_events,
        PRIORITY: has_priorities,
    }
    return frozenset(name for name, is_wanted in wanted.items() if is_wanted)


def _within(held: Iterable[tuple[float, float]], now_s: float) -> Distribution | None:
    """Return the values of the window that ends now; None without any."""
    values = [value for at_s, value in held if now_s - WINDOW_S <= at_s <= now_s]
    return distribution_of(values) if values else None


def _keep(table: dict[str, T], present: set[str]) -> None:
    for url in [url for url in table if url not in present]:
        del table[url]


def _model_of(known: Pod | None) -> str:
    return "" if known is None else shown_model(min(known.models - known.adapters, default=""))


def _unix(known: Pod | None, now_s: float, loop_s: float) -> float | None:
    if known is None or known.state is not PodState.READY or not isfinite(known.ready_since_s):
        return None
    return now_s - (loop_s - known.ready_since_s)


def _clock_offset(date: str | None, now_s: float) -> float | None:
    """Return by how much a pod's clock is ahead, to about a second, by the Date header of a response."""
    if date is None:
        return None
    try:
        # The header has whole seconds, cut off: half a second is added.
        return parsedate_to_datetime(date).timestamp() + 0.5 - now_s
    except (ValueError, TypeError, OverflowError):
        return None


def _smallest_offset(held: deque[float]) -> float:
    """Return the smallest of the last offsets: delays of single responses make them larger."""
    return min(held, key=abs)
