"""The supervisor process: reserves the ports, runs the children, forwards signals, reloads and admin requests.

No traffic passes through it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gateway.app.reload import Fresh, Reread, in_force, needs_restart, read_anew
from gateway.app.serving import Signals, bridged, caught, taking_signals, warn_of_idle_settings
from gateway.cluster.admin import TeamAdmin
from gateway.cluster.child import CannotStart
from gateway.cluster.metrics import Counts, team_metrics_app
from gateway.cluster.worker_pool import Team
from gateway.config.extproc import ExtProc
from gateway.config.settings import Settings
from gateway.identity.policy import load_policy, watch_policy
from gateway.observe.metrics.process import CallbackErrors
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from gateway.runtime.ports import addresses_of, bindings_of, open_port, reserve_port
from tenancy.document import Invalid
from tenancy.policy import Policy

MAX_FOLDER_BYTES = 70
"""Length of the run folder's path: that of a unix socket must stay below 108."""


async def supervise(settings: Settings, reread: Callable[[], Settings], variables: Mapping[str, str]) -> None:
    """Run all processes until a signal. Raises `Invalid`, `CannotListen` and `CannotStart` before they have started."""
    fresh = Fresh(settings, load_policy(settings, variables))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_run_folder())
        writer = LineWriter(STDOUT, lock=folder / "stdout.lock")
        stack.callback(writer.close)
        say = EventLog(writer, settings.log_level)
        stack.enter_context(bridged(say))
        stack.enter_context(caught(CallbackErrors(say)))
        traffic = await reserve_port("listen", settings.listen)
        reserved = [*traffic, *await _reserved_for_envoys(settings.extproc)]
        for held in reserved:
            stack.callback(held.close)
        counts = Counts()
        team = Team(fresh, folder, bindings_of(traffic), say=say, began=counts.join, ended=counts.leave)
        reloader = TeamReloader(team, reread, variables, say)
        signals = stack.enter_context(taking_signals(reloader.reload))
        listening = {"traffic": addresses_of(traffic)}
        if settings.extproc is not None:
            listening |= settings.extproc.addresses(settings.processes)
        apps = (
            ("metrics", settings.metrics, team_metrics_app(team, counts, signals.stop.is_set)),
            ("admin", settings.admin, TeamAdmin(team, reloader.reload).app(settings.admin_token)),
        )
        for name, where, app in apps:
            if where is not None:
                runner, listening[name] = await open_port(name, app, where)
                stack.push_async_callback(runner.cleanup)
        await stack.enter_async_context(team.kept())
        await stack.enter_async_context(_beside(reloader.watch, signals))
        if await _begun(team, signals):
            say("info", "listening", version=version("hearth-gateway"), **listening, processes=settings.processes)
            warn_of_idle_settings(settings, say)
            await signals.stop.wait()
        for held in reserved:
            held.close()  # a successor need not wait until all children have ended
        times = team.fresh.settings.timeouts
        say("info", "draining", grace_s=times.drain_s, lame_duck_s=times.lame_duck_s)
        await team.leave(signals.cut, times.lame_duck_s + times.drain_s)
        say("info", "stopped")


async def _reserved_for_envoys(config: ExtProc | None) -> list[socket.socket]:
    """Reserve the ext_proc ports that workers share."""
    if config is None or not config.shares_port:
        return []
    ports = [("extproc", config.listen), *([("extproc.health", config.health)] if config.health else [])]
    return [held for name, where in ports for held in await reserve_port(name, where)]


class TeamReloader:
    """Reloads all children: settings are read and checked once here, then applied by each."""

    def __init__(self, team: Team, reread: Reread, variables: Mapping[str, str], say: EventLog) -> None:
        self._team = team
        self._reread = reread
        self._variables = variables
        self._say = say
        self._turn = asyncio.Lock()

    async def reload(self) -> dict[str, object]:
        """Reload. Returns the result as JSON values."""
        async with self._turn:
            self._team.reopen_logs()
            old = self._team.fresh.settings
            try:
                fresh = read_anew(old, self._reread, self._variables)
            except Invalid as invalid:
                faults = [str(fault) for fault in invalid.faults]
                self._say("error", "reload refused, the old settings stay", faults=faults)
                return {"reloaded": False, "faults": faults}
            self._say.level = fresh.settings.log_level
            # Children that are replaced later must run with the same settings as the others.
            found = await self._team.renew(replace(fresh, settings=in_force(old, fresh.settings)))
            if faults := [f"{name}: {fault}" for name, held in found.items() for fault in held]:
                self._say("error", "reloaded, but not by all", faults=faults)
                return {"reloaded": False, "faults": faults}
            restart = needs_restart(old, fresh.settings)
            self._say("info", "reloaded", needs_restart=restart, processes=sorted(found))
            return {"reloaded": True, "needs_restart": restart, "processes": sorted(found)}

    async def watch(self) -> None:
        """Apply a changed policy in all children, until cancelled."""
        team = self._team

        async def renew(policy: Policy | None) -> list[str]:
            async with self._turn:
                found = await team.renew(Fresh(team.fresh.settings, policy))
            return [f"{name}: {fault}" for name, held in found.items() for fault in held]

        await watch_policy(
            lambda: team.fresh.settings, lambda: team.fresh.policy, renew, self._variables, say=self._say
        )


@asynccontextmanager
async def _beside(run: Callable[[], Coroutine[Any, Any, None]], signals: Signals) -> AsyncIterator[None]:
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
            raise CannotStart((f"{folder} is too long a path for sockets: set TMPDIR to a shorter one",))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _begun(team: Team, signals: Signals) -> bool:
    """Wait until all children have started. False where a signal stops them before. Raises `CannotStart`."""
    begun = asyncio.create_task(team.begun(), name="begin")
    stop = asyncio.create_task(signals.stop.wait(), name="stop")
    await asyncio.wait((begun, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if begun.done():
        begun.result()
        return True
    begun.cancel()
    return False
