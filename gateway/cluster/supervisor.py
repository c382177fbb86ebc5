"""The supervisor process: reserves the ports, runs the children, forwards signals, reloads and admin requests.

No traffic passes through it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gateway.app.reload import LoadedConfig, ReadSettings, effective_settings, load_config, needs_restart
from gateway.app.serving import (
    Signals,
    bridging_library_logs,
    handling_callback_errors,
    handling_signals,
    warn_of_idle_settings,
)
from gateway.cluster.admin import SupervisorAdmin
from gateway.cluster.child import ChildStartFailed
from gateway.cluster.metrics import ScrapedMetrics, supervisor_metrics_app
from gateway.cluster.worker_pool import WorkerPool
from gateway.config.extproc import ExtProcConfig
from gateway.config.settings import Settings
from gateway.identity.policy import load_policy, watch_policy
from gateway.observe.metrics.configuration import ReloadStatus
from gateway.observe.metrics.process import CallbackErrorHandler
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from gateway.runtime.ports import addresses_of, bindings_of, reserve_port, serve_app
from tenancy.document import InvalidDocument
from tenancy.policy import Policy

MAX_FOLDER_BYTES = 70
"""Length of the run folder's path: that of a unix socket must stay below 108."""


async def supervise(settings: Settings, reread: Callable[[], Settings], variables: Mapping[str, str]) -> None:
    """Run all processes until a signal. Raises `InvalidDocument`, `CannotListen` and `ChildStartFailed` before they
    have started.
    """
    fresh = LoadedConfig(settings, load_policy(settings, variables))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_run_folder())
        writer = LineWriter(STDOUT, lock=folder / "stdout.lock")
        stack.callback(writer.close)
        log_event = EventLog(writer, settings.log_level)
        stack.enter_context(bridging_library_logs(log_event))
        stack.enter_context(handling_callback_errors(CallbackErrorHandler(log_event)))
        traffic = await reserve_port("listen", settings.listen)
        reserved = [*traffic, *await _reserved_for_envoys(settings.extproc)]
        for held in reserved:
            stack.callback(held.close)
        counts = ScrapedMetrics()
        team = WorkerPool(
            fresh, folder, bindings_of(traffic), log_event=log_event, began=counts.join, ended=counts.leave
        )
        reloads = ReloadStatus(time.time)
        reloader = SupervisorReloader(team, reread, variables, log_event, reloads)
        signals = stack.enter_context(handling_signals(reloader.reload))
        listening = {"traffic": addresses_of(traffic)}
        if settings.extproc is not None:
            listening |= settings.extproc.addresses_of_workers(settings.processes)
        apps = (
            ("metrics", settings.metrics_listen, supervisor_metrics_app(team, counts, reloads, signals.stop.is_set)),
            ("admin", settings.admin_listen, SupervisorAdmin(team, reloader.reload).app(settings.admin_token)),
        )
        for name, where, app in apps:
            if where is not None:
                runner, listening[name] = await serve_app(name, app, where)
                stack.push_async_callback(runner.cleanup)
        await stack.enter_async_context(team.running())
        await stack.enter_async_context(_run_with_signals(reloader.watch, signals))
        if await _wait_started(team, signals):
            log_event("info", "listening", version=version("hearth-gateway"), **listening, processes=settings.processes)
            warn_of_idle_settings(settings, log_event)
            await signals.stop.wait()
        for held in reserved:
            held.close()  # a successor need not wait until all children have ended
        times = team.fresh.settings.timeouts
        log_event("info", "drain_started", grace_s=times.drain_s, lame_duck_s=times.lame_duck_s)
        await team.stop(signals.cut, times.lame_duck_s + times.drain_s)
        log_event("info", "stopped")


async def _reserved_for_envoys(config: ExtProcConfig | None) -> list[socket.socket]:
    """Reserve the ext_proc ports that workers share."""
    if config is None or not config.reuse_port:
        return []
    ports = [("extproc", config.listen), *([("extproc.health", config.health_listen)] if config.health_listen else [])]
    return [held for name, where in ports for held in await reserve_port(name, where)]


class SupervisorReloader:
    """Reloads all children: settings are read and checked once here, then applied by each."""

    def __init__(
        self,
        team: WorkerPool,
        reread: ReadSettings,
        variables: Mapping[str, str],
        log_event: EventLog,
        reloads: ReloadStatus,
    ) -> None:
        self._team = team
        self._reloads = reloads
        self._reread = reread
        self._variables = variables
        self._log_event = log_event
        self._turn = asyncio.Lock()

    async def reload(self) -> dict[str, object]:
        """Reload. Returns the result as JSON values."""
        async with self._turn:
            self._team.reopen_logs()
            old = self._team.fresh.settings
            try:
                fresh = load_config(old, self._reread, self._variables)
            except InvalidDocument as invalid:
                faults = [str(fault) for fault in invalid.errors]
                self._reloads.note_config(is_successful=False)
                self._log_event("error", "reload_failed", errors=faults)
                return {"reloaded": False, "errors": faults}
            self._log_event.level = fresh.settings.log_level
            # Children that are replaced later must run with the same settings as the others.
            found = await self._team.apply_config(replace(fresh, settings=effective_settings(old, fresh.settings)))
            restart = needs_restart(old, fresh.settings)
            if faults := [f"{name}: {fault}" for name, held in found.items() for fault in held]:
                self._reloads.note_config(is_successful=False, needs_restart=restart)
                self._log_event("error", "reload_incomplete", errors=faults)
                return {"reloaded": False, "errors": faults}
            self._reloads.note_config(is_successful=True, needs_restart=restart)
            self._reloads.note_policy(is_successful=True)
            self._log_event("info", "reload_succeeded", needs_restart=restart, processes=sorted(found))
            return {"reloaded": True, "needs_restart": restart, "processes": sorted(found)}

    async def watch(self) -> None:
        """Apply a changed policy in all children, until cancelled."""
        team = self._team

        async def renew(policy: Policy | None) -> list[str]:
            async with self._turn:
                found = await team.apply_config(LoadedConfig(team.fresh.settings, policy))
            return [f"{name}: {fault}" for name, held in found.items() for fault in held]

        await watch_policy(
            lambda: team.fresh.settings,
            lambda: team.fresh.policy,
            renew,
            self._variables,
            log_event=self._log_event,
            on_reload=self._reloads.note_policy,
        )


@asynccontextmanager
async def _run_with_signals(run: Callable[[], Coroutine[Any, Any, None]], signals: Signals) -> AsyncIterator[None]:
    """Run a task beside the children. Should it ever end, all stop: an outdated policy must not stay in use."""
    task = asyncio.create_task(run(), name="watch policy")
    task.add_done_callback(lambda _: signals.stop.set())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A private folder for sockets and locks."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-"))
    try:
        if len(str(folder)) > MAX_FOLDER_BYTES:
            raise ChildStartFailed((f"{folder} is too long a path for sockets: set TMPDIR to a shorter one",))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _wait_started(team: WorkerPool, signals: Signals) -> bool:
    """Wait until all children have started. False where a signal stops them before. Raises `ChildStartFailed`."""
    starting = asyncio.create_task(team.wait_started(), name="begin")
    stop = asyncio.create_task(signals.stop.wait(), name="stop")
    await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    return False
