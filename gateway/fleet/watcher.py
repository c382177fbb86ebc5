"""The one writer of the fleet: follows discovery, probes and scrapes every pod, and updates its standing in the router.

Runs on the relay's own loop, so it is slow and cheap: a probe every other second and a scrape every five per pod, with
jitter, few at a time. Knows no request; the pipeline reports how attempts on pods ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from gateway.config.discovery import DiscoveredPod
from gateway.config.models import ModelEntry
from gateway.discovery.aggregator import EmptySources, PodAggregator
from gateway.discovery.source import PodSource, StaticSource
from gateway.fleet.breaker import BreakerState, CircuitBreaker
from gateway.fleet.engine_counters import EngineCounters
from gateway.fleet.external_load import OwnLoad, apply_scrape, own_load_at
from gateway.fleet.pod_state import WatchedPod, updated_pod
from gateway.fleet.probe import PageListener, Prober, ProbeResult
from gateway.fleet.scrape import MetricsPage
from gateway.pipeline.attempt import AttemptStatus
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import report_exception, restarted
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState

FIXES: Mapping[ProbeResult, str] = {
    ProbeResult.UNREACHABLE: "nothing listens there: check host and port of its URL, and that vLLM has started",
    ProbeResult.NO_RESPONSE: "/health does not answer in time: check its URL, the network between, "
    "and that vLLM is not stuck",
    ProbeResult.NOT_READY: "/health does not answer 200: check that the port is vLLM's, and vLLM's own log",
}
"""How to fix a pod whose probes have never succeeded."""


@dataclass(frozen=True, slots=True)
class ProbeIntervals:
    """Intervals of the watcher, in seconds."""

    probe_s: float = 2.0
    scrape_s: float = 5.0
    list_s: float = 10.0
    """Adapters come and go while a pod runs."""
    jitter: float = 0.1
    """Share by which every pause is drawn longer or shorter."""
    min_probe_s: float = 0.1
    """Minimum between two probes of one pod, however often its requests fail."""
    startup_s: float = 5.0
    """Pods that are ready so soon after the gateway's start ran before it: they need no slow start."""
    report_dead_s: float = 10.0
    """A pod without a successful probe for so long is reported."""
    max_concurrent: int = 32
    max_pods_at_full_rate: int = 100
    """Beyond so many pods all pauses grow with their number: probes must not take the event loop from the relay."""


class FleetWatcher:
    """One per gateway."""

    def __init__(
        self,
        router: Router,
        sources: Sequence[PodSource],
        prober: Prober,
        *,
        log_event: LogFunction,
        clock: Callable[[], float],
        draw: Callable[[], float],
        models: Mapping[str, ModelEntry] | None = None,
        rhythm: ProbeIntervals | None = None,
        warns: bool = True,
    ) -> None:
        """`warns`: report pods that were never well and sources that find nothing; one worker of a host does."""
        self._warns = warns
        self._router = router
        self.census = PodAggregator(sources)
        self._prober = prober
        self._log_event = log_event
        self._clock = clock
        self._draw = draw
        self._models: dict[str, ModelEntry] = {}
        self._rhythm = rhythm or ProbeIntervals()
        self._gone: Callable[[str], object] = lambda _: None
        self._should_warm: Callable[[Pod], bool] = lambda _: False
        self._pods: dict[str, WatchedPod] = {}
        self._following: dict[PodSource, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._slots = asyncio.Semaphore(self._rhythm.max_concurrent)
        self._started_s = clock()
        self._drained: set[str] = set()
        self._held_for_findings: frozenset[str] = frozenset()
        self._empty = EmptySources()
        self.engine_counters = EngineCounters()
        self._has_waited = False
        self.has_looked = asyncio.Event()
        """Set once every source has reported its pods and each of them has been probed."""
        self.replace_models(models or {})
        router.fleet.is_complete = self.census.is_complete()

    # -- what others ask and tell ----------------------------------------------------------------------------------

    def set_unreachable_listener(self, notify: Callable[[str], object]) -> None:
        """Set what is called after each probe of a pod that was well and where now nothing listens."""
        self._gone = notify

    def warm_new_pods(self, should_warm: Callable[[Pod], bool]) -> None:
        """Set what decides whether a pod that has just become ready is warmed first: until `end_warmup`."""
        self._should_warm = should_warm

    def end_warmup(self, url: str) -> None:
        """Let a pod that was warmed take load, if it is well."""
        pod = self._pods.get(url)
        if pod is not None and pod.is_warming:
            pod.is_warming = False
            self._show(pod)

    async def read_version(self, url: str) -> str | None:
        """Request the version of a pod's engine; None if it reports none."""
        return await self._prober.version(url)

    def set_page_listener(self, notify: PageListener) -> None:
        """Set what is called with every metrics page that is scraped."""
        self._prober.on_page = notify

    @property
    def pods(self) -> tuple[WatchedPod, ...]:
        return tuple(self._pods.values())

    def standing_warnings(self) -> Iterator[tuple[str, str]]:
        """Yield event and subject of each warning about pods and sources whose cause lasts."""
        now_s = self._clock()
        for pod in self.pods:
            if pod.was_never_healthy(now_s, self._rhythm.report_dead_s):
                yield "pod_never_healthy", pod.url
            elif pod.problem:
                yield "pod_unusable", pod.url
        for source in self.census.sources:
            snapshot = self.census.last_snapshot(source)
            if source.name != StaticSource.name and snapshot is not None and not snapshot.pods:
                yield "source_empty", source.name

    def is_ready(self) -> bool:
        """Return whether any pod may be chosen, and the others are known or were waited for."""
        return (self.has_looked.is_set() or self._has_waited) and self._may_any_be_chosen()

    def _may_any_be_chosen(self) -> bool:
        return any(pod.state in (PodState.READY, PodState.SUSPECT) for pod in self._router.fleet.pods)

    async def wait_for_first_probes(self, max_s: float) -> None:
        """Wait until all sources have reported their pods and all of these were probed, at most `max_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await self.has_looked.wait()
        self._has_waited = True

    def on_attempt_end(self, url: str, end: AttemptStatus) -> bool:
        """Apply the end of an attempt on a pod. Returns whether other requests had failed there before."""
        pod = self._pods.get(url)
        if pod is None:
            return False
        if end is AttemptStatus.OK and pod.breaker.state is BreakerState.CLOSED and not pod.breaker.failures:
            return False
        was_unhealthy = pod.breaker.is_failing
        if end in (AttemptStatus.OK, AttemptStatus.ESCALATED):  # It was the model that was not good enough.
            moved = pod.breaker.on_success()
            if moved is not pod.breaker:
                self._move_breaker(pod, moved)
        elif end.is_pod_failure:
            self._take_failure(pod, end)
        return was_unhealthy

    def _take_failure(self, pod: WatchedPod, end: AttemptStatus) -> None:
        pod.note_error(end.value, self._clock())
        if end is AttemptStatus.ENGINE_HUNG and not pod.is_hung:
            self._log_event("warning", "engine_hung", upstream=pod.url)
            pod.mark_hung(self._clock())
            self._show(pod)
        else:
            self._move_breaker(pod, pod.breaker.on_failure(self._clock()))
        pod.wake.set()

    def set_drained(self, urls: Iterable[str], *, drained: bool = True) -> None:
        """Drain or undrain these pods, also those that are discovered later: set before this gateway started."""
        for url in urls:
            if not self.drain(url, drained=drained):
                (self._drained.add if drained else self._drained.discard)(url)

    def drain(self, url: str, *, drained: bool) -> bool:
        """Drain a pod, or undrain it. Returns False if there is no such pod."""
        pod = self._pods.get(url)
        if pod is None:
            return False
        (self._drained.add if drained else self._drained.discard)(url)
        pod.is_drained = drained
        self._show(pod)
        pod.wake.set()
        return True

    def hold_for_findings(self, urls: frozenset[str]) -> None:
        """Drain exactly these pods for their findings, also where discovered later; operators' drains stay."""
        self._held_for_findings = urls
        for pod in self.pods:
            if pod.is_held_for_finding != (pod.url in urls):
                pod.is_held_for_finding = pod.url in urls
                self._show(pod)
                pod.wake.set()

    def replace_models(self, models: Mapping[str, ModelEntry]) -> None:
        """Apply another `model_list`: which pods may serve what."""
        self._models = dict(models)
        self._router.fleet.configured_models = frozenset(models)
        for pod in self._pods.values():
            self._show(pod)

    def replace_source(self, old: PodSource, new: PodSource) -> None:
        """Follow another source in place of one."""
        self.census.replace(old, new)
        if (task := self._following.pop(old, None)) is not None:
            task.cancel()
        if self._group is not None:
            self._following[new] = self._group.create_task(self._follow(new), name="follow pods")

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for source in self.census.sources:
                self._following[source] = group.create_task(self._follow(source), name="follow pods")
            await asyncio.get_running_loop().create_future()

    # -- which pods there are --------------------------------------------------------------------------------------

    @restarted("discovery")
    async def _follow(self, source: PodSource) -> None:
        while True:
            try:
                return await source.follow(lambda found: self._take_found(source, found))
            except Exception as error:  # noqa: BLE001 - no odd answer of a source may end the watching of all
                report_exception("discovery", error)
                self._log_event("error", "source_failed", source=source.name, error=repr(error))
            await asyncio.sleep(self._rhythm.list_s)

    def _take_found(self, source: PodSource, found: tuple[DiscoveredPod, ...]) -> None:
        if (
            self._warns
            and source.name != StaticSource.name
            and (fix := self._empty.hint_for(source.name, is_empty=not found))
        ):
            self._log_event("warning", "source_empty", source=source.name, fix=fix)
        is_new = self.census.update(source, found, self._clock())
        self._router.fleet.is_complete = self.census.is_complete()
        if not is_new:
            return
        wanted = self.census.wanted
        for url in [url for url in self._pods if url not in wanted]:
            self._remove(url)
        for url, pod in wanted.items():
            if url not in self._pods:
                self._add(pod)
            elif self._pods[url].discovered != pod:
                self._learn(self._pods[url], pod)
        self._note_look()

    def _add(self, found: DiscoveredPod) -> None:
        pod = self._pods[found.url] = WatchedPod(
            found, is_drained=found.url in self._drained, is_held_for_finding=found.url in self._held_for_findings
        )
        self._router.put_pod(
            Pod(found.url, pool=found.pool, region=found.region, facts=found.facts, has_reported_models=False)
        )
        self._router.reshape_pod(found.url, (EngineShape(role=found.facts.effective_role),))
        if self._group is not None:
            pod.task = self._group.create_task(self._watch(pod), name=f"watch {found.url}")

    def _learn(self, pod: WatchedPod, found: DiscoveredPod) -> None:
        """Apply what sources now report of it."""
        pod.discovered = found
        known, role = self._router.fleet.pod(pod.url), found.facts.effective_role
        if known is not None and any(engine.role is not role for engine in known.engines):
            shapes = [EngineShape(each.rank, role, each.kv_tokens, each.block_tokens) for each in known.engines]
            self._router.reshape_pod(pod.url, shapes)
        self._show(pod)

    def _remove(self, url: str) -> None:
        pod = self._pods.pop(url)
        self._drained.discard(url)
        if pod.task is not None:
            pod.task.cancel()
        self._router.remove_pod(url)
        self.engine_counters.forget(url)
        self._log_event("info", "pod_removed", upstream=url)

    # -- how each of them is ---------------------------------------------------------------------------------------

    @restarted("pod probes")
    async def _watch(self, pod: WatchedPod) -> None:
        while True:
            async with self._slots:
                try:
                    await self._look(pod)
                except Exception as error:  # noqa: BLE001 - one odd pod must not end the watching of all
                    report_exception("pod probes", error)
                    self._log_event("error", "pod_watch_failed", upstream=pod.url, error=repr(error))
            pod.was_probed = True
            self._note_look()
            await self._pause(pod)

    def _note_look(self) -> None:
        if self.has_looked.is_set() or not self.census.is_complete():
            return
        if all(pod.was_probed for pod in self._pods.values()):
            self.has_looked.set()

    async def _pause(self, pod: WatchedPod) -> None:
        jitter = 1 + self._rhythm.jitter * (2 * self._draw() - 1)
        try:
            async with asyncio.timeout(
                self._rhythm.probe_s * jitter * max(1.0, len(self._pods) / self._rhythm.max_pods_at_full_rate)
            ):
                await pod.wake.wait()
        except TimeoutError:
            return
        pod.wake.clear()
        early_s = pod.probed_s + self._rhythm.min_probe_s - self._clock()
        if early_s > 0:
            await asyncio.sleep(early_s)

    async def _look(self, pod: WatchedPod) -> None:
        health = await self._prober.health(pod.url)
        opened = pod.breaker.open_count
        pod.apply_health(health, self._clock())
        self._log_if_opened(pod, opened)
        if self._warns and pod.should_report_dead(self._clock(), self._rhythm.report_dead_s):
            self._log_event("warning", "pod_never_healthy", upstream=pod.url, health=health, fix=FIXES[health])
        if health is ProbeResult.HEALTHY:
            await self._ask(pod)
            if pod.is_hung and not pod.breaker.is_open:
                await self._ask_for_tokens(pod)
        self._show(pod)
        if health is ProbeResult.UNREACHABLE and pod.was_healthy:
            self._gone(pod.url)

    async def _ask(self, pod: WatchedPod) -> None:
        """Request its models and metrics, if those we have are old."""
        rhythm, now_s = self._rhythm, self._clock()
        if now_s - pod.listed_s >= rhythm.list_s:
            trouble = pod.problem
            pod.apply_models(await self._prober.models(pod.url), self._clock())
            if pod.problem and pod.problem != trouble:
                self._log_event("warning", "pod_unusable", upstream=pod.url, error=pod.problem)
        if now_s - pod.scraped_s >= rhythm.scrape_s:
            before = own_load_at(self._router, pod.url)
            page = await self._prober.metrics(pod.url)
            if pod.url in self._pods:
                self._take_page(pod, page, before)

    async def _ask_for_tokens(self, pod: WatchedPod) -> None:
        """Request a token of every engine of a pod that hung; after it, clients' requests go there on trial."""
        known = self._router.fleet.pod(pod.url)
        for engine in known.engines if known is not None and pod.cards else ():
            if not await self._prober.generates_token(pod.url, (pod.cards or ())[0].name, engine.rank):
                return
        pod.is_hung = False
        self._log_event("info", "engine_hang_ended", upstream=pod.url)

    def _take_page(self, pod: WatchedPod, page: MetricsPage | None, before: OwnLoad) -> None:
        if pod.apply_metrics(page, self._clock()):
            self._router.clear_caches(pod.url)
            pod.needs_warmup = True
            self._log_event("info", "pod_restarted", upstream=pod.url)
        known = self._router.fleet.pod(pod.url)
        shapes = pod.shapes()
        if known is None:
            return
        if shapes and shapes != tuple(
            EngineShape(engine.rank, engine.role, engine.kv_tokens, engine.block_tokens) for engine in known.engines
        ):
            self._router.reshape_pod(pod.url, shapes)
        else:
            self._router.resize_caches(pod.url)
        if page is not None:
            apply_scrape(self._router, pod.url, page, before, self._clock())
            self._count_engines(pod.url, page)

    def _count_engines(self, url: str, page: MetricsPage) -> None:
        """Add what the engines of a pod have counted themselves."""
        known = self._router.fleet.pod(url)
        for engine in known.engines if known is not None else ():
            reading = page.reading_of(engine.rank)
            if known is not None and reading is not None:
                self.engine_counters.observe(engine.name, known.pool_label, engine.role.value, reading.counters)

    # -- what the router is told -----------------------------------------------------------------------------------

    def _move_breaker(self, pod: WatchedPod, moved: CircuitBreaker) -> None:
        opened = pod.breaker.open_count
        pod.breaker = moved
        self._log_if_opened(pod, opened)
        self._show(pod)

    def _log_if_opened(self, pod: WatchedPod, opened_before: int) -> None:
        if pod.breaker.open_count != opened_before:
            self._log_event("warning", "breaker_opened", upstream=pod.url, cooldown_s=pod.breaker.cooldown_s)

    def _show(self, pod: WatchedPod) -> None:
        """Update the pod in the router, if it has changed."""
        known = self._router.fleet.pod(pod.url)
        if known is None or self._pods.get(pod.url) is not pod:
            return
        shown = updated_pod(known, pod, self._models)
        if shown.state is PodState.READY and known.state not in (PodState.READY, PodState.DRAINING):
            ready_since_s = self._ready_since(known.state)
            if pod.needs_warmup and ready_since_s > -inf and self._is_warmed_first(shown):
                pod.is_warming, shown = True, replace(shown, state=PodState.WARMING)
            else:
                shown = replace(shown, ready_since_s=ready_since_s)
            pod.needs_warmup = False
        if shown == known:
            return
        self._router.put_pod(shown)
        if shown.state is not known.state:
            self._log_event(
                "info", "pod_state_changed", upstream=pod.url, state=shown.state, models=sorted(shown.models)
            )

    def _is_warmed_first(self, pod: Pod) -> bool:
        try:
            return self._should_warm(pod)
        except Exception as error:  # noqa: BLE001 - a pod must not wait for a warm-up that nobody decides
            report_exception("warm-up", error)
            return False

    def _ready_since(self, before: PodState) -> float:
        """Return since when it is ready: slow start is for a pod that joins others or comes back to them."""
        now_s = self._clock()
        is_fresh = before is PodState.STARTING and now_s - self._started_s < self._rhythm.startup_s
        return -inf if is_fresh or not self._may_any_be_chosen() else now_s
