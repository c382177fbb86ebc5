"""The children of a supervisor: which ones the settings need, requests to all of them, and their orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from gateway.app.reload import LoadedConfig
from gateway.cluster.channel import ChildConfig
from gateway.cluster.child import ChildProcess, ChildResponse, ProcessSlot
from gateway.config.settings import Settings
from gateway.diagnosis.effects import FindingEffects
from gateway.runtime.event_log import EventLog
from gateway.runtime.host import HostProcess
from gateway.runtime.ports import Binding
from routing.pods import PodState


def needs_index_process(settings: Settings) -> bool:
    """Whether an index process is needed: there are peers to sync with, or KV events to follow."""
    return settings.processes > 1 or settings.redis is not None or settings.kv_events is not None


def needs_supervisor(settings: Settings) -> bool:
    """Whether there is more than one process."""
    return settings.processes > 1 or needs_index_process(settings)


INDEX_PROCESS = "index"

LEEWAY_S = 10.0
"""Time beyond the drain before a child that does not end is killed."""


class _Pod(msgspec.Struct):
    url: str
    state: str
    is_held_for_finding: bool = False


class _Fleet(msgspec.Struct):
    pods: list[_Pod]


class WorkerPool:
    """The children of one supervisor."""

    def __init__(
        self,
        fresh: LoadedConfig,
        folder: Path,
        traffic: tuple[Binding, ...],
        *,
        log_event: EventLog,
        began: Callable[[ChildProcess], None],
        ended: Callable[[ChildProcess], None],
    ) -> None:
        """`began` and `ended` are called for each child that has started."""
        self.fresh = fresh
        self.providers_stopped = False
        """An operator has stopped providers outside the fleet: workers that start later stop them as well."""
        """The configuration of all children."""
        self._traffic = traffic
        self._tasks: dict[ProcessSlot, asyncio.Task[None]] = {}
        self._began, self._ended = began, ended
        self._effects = FindingEffects()
        """Of the findings of the first worker."""
        self._host = HostProcess(processes=fresh.settings.processes, folder=folder)
        self.index_process: ProcessSlot | None = None
        if needs_index_process(fresh.settings):
            self._host = replace(self._host, kv_index_socket=folder / f"{INDEX_PROCESS}-news.sock")
            self.index_process = ProcessSlot(
                INDEX_PROCESS, self._index_process_orders, log_event=log_event, began=self._on_start, ended=self._on_end
            )
        self.workers = tuple(
            ProcessSlot(
                f"worker-{number}",
                partial(self._orders, number),
                log_event=log_event,
                began=self._on_start,
                ended=self._on_end,
            )
            for number in range(1, fresh.settings.processes + 1)
        )

    @property
    def slots(self) -> tuple[ProcessSlot, ...]:
        return (self.index_process, *self.workers) if self.index_process else self.workers

    @property
    def children(self) -> list[ChildProcess]:
        """The running children."""
        return [slot.child for slot in self.slots if slot.child]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep all children running inside the block; those left at its end are killed."""
        self._tasks = {slot: asyncio.create_task(slot.run(), name=slot.name) for slot in self.slots}
        try:
            yield
        finally:
            for slot in self.slots:
                slot.stop()
                slot.kill()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def wait_started(self) -> None:
        """Wait until all have started for the first time. Raises `ChildStartFailed` as soon as one cannot."""
        await asyncio.gather(*(slot.first for slot in self.slots))

    async def stop(self, cut: asyncio.Event, grace_s: float) -> None:
        """Stop the workers. At `cut`, or after the grace, they end at once.

        The index process is stopped last: until then it takes their updates.
        """
        ended = asyncio.create_task(self._end(self.workers, grace_s + LEEWAY_S), name="workers end")
        cutting = asyncio.create_task(cut.wait(), name="cut")
        await asyncio.wait((ended, cutting), return_when=asyncio.FIRST_COMPLETED)
        cutting.cancel()
        if not ended.done():
            await self._end(self.workers, LEEWAY_S)
            ended.cancel()
        await asyncio.gather(ended, cutting, return_exceptions=True)
        if self.index_process is not None:
            await self._end((self.index_process,), LEEWAY_S)

    async def _end(self, pool_slots: Sequence[ProcessSlot], limit_s: float) -> None:
        for slot in pool_slots:
            slot.stop()
        await asyncio.wait([self._tasks[slot] for slot in pool_slots], timeout=limit_s)

    async def apply_config(self, fresh: LoadedConfig) -> dict[str, tuple[str, ...]]:
        """Apply a configuration in all children, also those that start later. Returns errors by child."""
        self.fresh = fresh
        children = self.children
        faults = await asyncio.gather(*(child.apply_config(fresh) for child in children))
        return {child.name: found for child, found in zip(children, faults, strict=True)}

    def reopen_logs(self) -> None:
        """Have all children reopen their log files."""
        for child in self.children:
            child.reopen_logs()

    async def request(self, path: str, *, method: str = "GET", body: bytes | None = None) -> dict[str, ChildResponse]:
        """Send a request to all workers. Returns their answers by name, without those that did not answer."""
        children = [slot.child for slot in self.workers if slot.child]
        answers = await asyncio.gather(*(child.request(path, method=method, body=body) for child in children))
        return {child.name: answer for child, answer in zip(children, answers, strict=True) if answer is not None}

    def set_drained(self, pod: str, *, is_drained: bool) -> None:
        """Have all workers drain a pod, or undo that, also those that are starting."""
        for slot in self.workers:
            slot.set_drained(pod, is_drained=is_drained)

    # -- configuration of children -------------------------------------------------------------------------------------

    async def _orders(self, number: int) -> ChildConfig:
        host = replace(self._host, number=number)
        drained = await self._drained()
        return ChildConfig(f"worker-{number}", host, self.fresh, self._traffic, drained, self.providers_stopped)

    async def _index_process_orders(self) -> ChildConfig:
        return ChildConfig(INDEX_PROCESS, self._host, self.fresh)

    async def _drained(self) -> frozenset[str]:
        """The pods that are drained, for workers that start later."""
        for answer in (await self.request("/admin/fleet")).values():
            try:
                fleet = msgspec.json.decode(answer.body, type=_Fleet)
            except msgspec.MsgspecError:
                continue
            return frozenset(
                pod.url for pod in fleet.pods if pod.state == PodState.DRAINING and not pod.is_held_for_finding
            )
        return frozenset()

    def _on_start(self, child: ChildProcess) -> None:
        """Update a child that started with a configuration from before a reload."""
        if child.fresh is not self.fresh:
            child.send_config(self.fresh)
        child.on_effects = self._apply_effects
        if self._effects != FindingEffects():
            child.apply_effects(self._effects)
        self._began(child)

    def _on_end(self, child: ChildProcess) -> None:
        """Undo the effects of the worker that diagnoses: its successor begins without evidence."""
        if child.name == self.workers[0].name:
            self._apply_effects(FindingEffects())
        self._ended(child)

    def _apply_effects(self, effects: FindingEffects) -> None:
        """Send effects to all workers; the same ones again renew them."""
        if effects == FindingEffects() == self._effects:
            return
        self._effects = effects
        for slot in self.workers:
            if slot.child is not None:
                slot.child.apply_effects(effects)
