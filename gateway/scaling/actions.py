"""Actions beside the number of engines: proposed from the last decision and findings, planned by installed actuators.

Nothing is acted on. Actuators are code of other packages: they run in a thread of their own, beside requests; what they
raise is logged, and one that does not return delays neither requests nor the end of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from threading import Thread
from typing import Any

from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import call_guarded, restarted
from supply.actions import Actuator, ProposedAction

GROUP = "hearth.actuators"
"""Entry points of actuators that other packages bring."""

INTERVAL_S = 15.0
"""Between two looks."""

MAX_PLAN_CHARS = 300

MAX_NAME_CHARS = 63

PLAN_S = 10.0
"""In which the plans for all actions have to be made."""

Plans = tuple[tuple["PlannedAction", ...], dict[str, str]]
"""The actions with their plans, and by actuator what its last failed plan has raised."""


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """An action, and what each actuator would do for it."""

    action: ProposedAction
    plans: tuple[tuple[str, str], ...] = ()
    """(Name of the actuator, its line)."""

    def view(self) -> dict[str, Any]:
        """Return JSON values for the admin port."""
        action = self.action
        return {
            "action": action.kind.value,
            "model": action.model,
            "pool": action.pool,
            "pods": list(action.pods),
            "reason": str(action.reason),
            "engines": action.engines,
            "giving_pool": action.giving_pool,
            "plans": dict(self.plans),
        }


@dataclass(frozen=True, slots=True)
class LoadedActuator:
    """An installed actuator. Its name is read once: code of others may raise wherever it is touched."""

    name: str
    plan: Callable[[ProposedAction], object]
    """May raise, and may return anything."""


def load_actuators(log_event: LogFunction) -> tuple[LoadedActuator, ...]:
    """Return the actuators of installed packages. One that cannot be loaded is logged and left out."""
    found: dict[str, LoadedActuator] = {}
    for entry in entry_points(group=GROUP):
        try:
            actuator = _loaded(entry.load())
            if actuator.name in found:
                raise ValueError(f"another actuator has the name {actuator.name!r}")
            found[actuator.name] = actuator
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin must not prevent the start
            log_event("error", "actuator_failed", actuator=entry.name, error=_shown(error))
    return tuple(found.values())


def _loaded(named: object) -> LoadedActuator:
    """Return what an entry point names, or an instance of it. Raises TypeError where that is no actuator."""
    actuator = named() if isinstance(named, type) else named
    if not isinstance(actuator, Actuator) or not callable(actuator.plan):
        raise TypeError("has no name and plan")
    name: object = actuator.name
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        raise TypeError(f"its name is not text of 1 to {MAX_NAME_CHARS} printable characters")
    return LoadedActuator(name, actuator.plan)


class ActionAdviser:
    """One per gateway with supply decisions."""

    def __init__(
        self,
        propose: Callable[[], Iterable[ProposedAction]],
        actuators: Sequence[LoadedActuator],
        log_event: LogFunction,
    ) -> None:
        self.planned: tuple[PlannedAction, ...] = ()
        """Of the last look."""
        self.plan_s = PLAN_S
        self._propose = propose
        self._actuators = actuators
        self._log_event = log_event
        self._failed: set[str] = set()
        """Actuators whose last plan has raised: logged once."""
        self._planning: asyncio.Future[Plans] | None = None
        """Plans that are being made; no others are begun meanwhile."""

    @restarted("actions")
    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Propose actions, and ask the actuators for their plans."""
        actions = tuple(self._propose())
        if not actions or not self._actuators:
            self.planned = tuple(map(PlannedAction, actions))
            return
        if self._planning is None:
            self._planning = _in_daemon_thread(partial(plan_actions, actions, self._actuators))
        done, _ = await asyncio.wait({self._planning}, timeout=self.plan_s)
        if done:
            (planned, failed), self._planning = self._planning.result(), None
        else:
            names = ", ".join(each.name for each in self._actuators)
            planned, failed = tuple(map(PlannedAction, actions)), {names: f"no plans within {self.plan_s:g} s"}
        for name in failed.keys() - self._failed:
            self._log_event("error", "actuator_failed", actuator=name, error=failed[name])
        self.planned, self._failed = planned, set(failed)

    def view(self) -> list[dict[str, Any]]:
        """Return the actions of the last look as JSON values."""
        return [planned.view() for planned in self.planned]


def _in_daemon_thread(make: Callable[[], Plans]) -> asyncio.Future[Plans]:
    """Make plans in a thread for which the end of the process does not wait."""
    loop, made = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def run() -> None:
        plans = make()
        try:
            loop.call_soon_threadsafe(call_guarded, "actions", made.set_result, plans)
        except RuntimeError:
            return  # The loop has been closed meanwhile.

    Thread(target=run, name="actuators", daemon=True).start()
    return made


def plan_actions(actions: Sequence[ProposedAction], actuators: Sequence[LoadedActuator]) -> Plans:
    """Return the actions with their plans, and by actuator what its last failed plan has raised. Raises nothing."""
    failed: dict[str, str] = {}
    planned = []
    for action in actions:
        plans = []
        for actuator in actuators:
            try:
                line = _line(actuator.plan(action))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others; reported by the caller
                failed[actuator.name] = _shown(error)
                continue
            if line:
                plans.append((actuator.name, line))
        planned.append(PlannedAction(action, tuple(plans)))
    return tuple(planned), failed


def _line(plan: object) -> str:
    """Return a plan as one line, empty where there is none. Raises TypeError where it is no text."""
    if plan is None:
        return ""
    if not isinstance(plan, str):
        raise TypeError(f"plan returned {type(plan).__name__} instead of text or None")
    return " ".join(str.split(plan[: 4 * MAX_PLAN_CHARS]))[:MAX_PLAN_CHARS]


def _shown(error: BaseException) -> str:
    """Return what was raised, as text; its type alone where that raises too."""
    try:
        return repr(error)[:MAX_PLAN_CHARS]
    except Exception:  # noqa: BLE001 - code of others
        return type(error).__name__
