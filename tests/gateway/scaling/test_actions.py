"""Actuators of other packages, loaded by a real entry point: they give plans, and what they raise is logged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gateway.commands.scale import format_scale
from gateway.scaling.actions import ActionAdviser, LoadedActuator, load_actuators
from supply.actions import ActionKind, ProposedAction
from tests.gateway.commands.test_scale import view

PACKAGE = '''
class Rebalancer:
    """A fake: it plans what a real one would do, and fails for one pool."""

    name = "rebalancer"

    def plan(self, action):
        if action.pool == "broken":
            raise RuntimeError("no such pool")
        return f"spread experts\\nof {action.pool} anew" if action.kind == "expert_rebalance" else None


class Nameless:
    pass


class Unnamed(Rebalancer):
    """Its name raises what Python's own checks of attributes let through."""

    @property
    def name(self):
        raise RuntimeError("not configured")


class Late(Rebalancer):
    """Its name raises from the second time on."""

    reads = 0

    @property
    def name(self):
        self.reads += 1
        if self.reads > 2:
            raise RuntimeError("not configured any more")
        return "late"


class Unprintable(Exception):
    def __repr__(self):
        raise RuntimeError("no text")


class Raising(Rebalancer):
    name = "raising"

    def plan(self, action):
        raise Unprintable


class Exiting(Rebalancer):
    name = "exiting"

    def plan(self, action):
        raise SystemExit(1)


class Undecided:
    def __bool__(self):
        raise ValueError("neither")

    __str__ = __bool__


class Garbage(Rebalancer):
    name = "garbage"

    def plan(self, action):
        return Undecided()


class Numbered(Rebalancer):
    name = 7


class Endless(Rebalancer):
    name = "e" * 1_000


class Planless:
    name, plan = "planless", "spread experts"


def build():
    raise SystemExit("no license")
'''

HOT = ProposedAction(ActionKind.EXPERT_REBALANCE, "moe", "hot_expert", ("http://a",))
GROWING = ProposedAction(ActionKind.GRAPH_PREWARM, "moe", "load", model="m", engines=2)
BROKEN = ProposedAction(ActionKind.EXPERT_REBALANCE, "broken", "hot_expert")


def install(folder: Path, points: str) -> None:
    """Install a package with these entry points."""
    (folder / "rebalancing.py").write_text(PACKAGE)
    (folder / "exiting_at_import.py").write_text("raise SystemExit(1)\n")
    metadata = folder / "rebalancing-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rebalancing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[hearth.actuators]\n{points}")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which packages are imported."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("rebalancing", "exiting_at_import"):
        sys.modules.pop(name, None)


@pytest.fixture
def installed(package: Path) -> None:
    """A package with three entry points: a class, one without `plan`, and one that does not exist."""
    points = "good = rebalancing:Rebalancer\nnameless = rebalancing:Nameless\nmissing = rebalancing:Missing\n"
    install(package, points)
    invalidate_caches()


class Log:
    """Events as (name, actuator)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __call__(self, level: str, event: str, **fields: Any) -> None:
        assert level == "error"
        self.events.append((event, fields["actuator"]))


@pytest.mark.usefixtures("installed")
async def test_an_installed_actuator_gives_its_plans() -> None:
    """In one line; what it does not carry out is shown without a plan, and it is never told to act."""
    log = Log()
    actuators = load_actuators(log)
    assert [actuator.name for actuator in actuators] == ["rebalancer"]
    assert log.events == [("actuator_failed", "nameless"), ("actuator_failed", "missing")]
    adviser = ActionAdviser(lambda: (HOT, GROWING), actuators, log)
    await adviser.look()
    plans = {"rebalancer": "spread experts of moe anew"}
    shown = {"model": "", "pool": "moe", "engines": 0, "giving_pool": ""}
    hot = {"action": "expert_rebalance", "pods": ["http://a"], "reason": "hot_expert", "plans": plans}
    assert adviser.view()[0] == {**shown, **hot}
    assert adviser.view()[1]["plans"] == {}
    table = format_scale(view(actions=adviser.view()))
    assert "proposed for moe: expert_rebalance, because of hot_expert; rebalancer would: spread experts" in table
    assert "proposed for moe: graph_prewarm (2 engines), because of load\n" in table


@pytest.mark.usefixtures("installed")
async def test_a_plan_that_raises_is_logged_once_and_stops_nothing() -> None:
    """Until it has succeeded again."""
    log, actions = Log(), [BROKEN, HOT]
    adviser = ActionAdviser(lambda: actions, load_actuators(Log()), log)
    for _ in range(2):
        await adviser.look()
    assert log.events == [("actuator_failed", "rebalancer")]
    assert [len(planned.plans) for planned in adviser.planned] == [0, 1]
    actions.remove(BROKEN)
    await adviser.look()
    actions.append(BROKEN)
    await adviser.look()
    assert len(log.events) == 2


async def test_without_actuators_actions_are_shown() -> None:
    """And nothing runs in a thread."""
    adviser = ActionAdviser(lambda: (GROWING,), (), Log())
    await adviser.look()
    assert adviser.view()[0]["engines"] == 2


class Stuck:
    """An actuator that returns when it is let go."""

    name = "stuck"

    def __init__(self) -> None:
        self.may_return, self.calls = Event(), 0

    def plan(self, action: ProposedAction) -> str | None:
        """Wait."""
        self.calls += 1
        self.may_return.wait()
        return "done"


async def test_an_actuator_that_does_not_return_is_logged_once_and_called_once() -> None:
    """Its action is shown without a plan, and with it once the plan has come."""
    stuck, log = Stuck(), Log()
    adviser = ActionAdviser(lambda: (HOT,), (LoadedActuator(stuck.name, stuck.plan),), log)
    adviser.plan_s = 0.0
    for _ in range(3):
        await adviser.look()
    assert adviser.view()[0]["plans"] == {}
    assert (stuck.calls, log.events) == (1, [("actuator_failed", "stuck")])
    stuck.may_return.set()
    adviser.plan_s = 60.0
    await adviser.look()
    assert adviser.view()[0]["plans"] == {"stuck": "done"}


NO_ACTUATORS = {
    "unnamed": "rebalancing:Unnamed",
    "numbered": "rebalancing:Numbered",
    "endless": "rebalancing:Endless",
    "planless": "rebalancing:Planless",
    "build": "rebalancing:build",
    "importing": "exiting_at_import:Rebalancer",
    "module": "rebalancing",
    "twin": "rebalancing:Rebalancer",
}
"""Entry points that name no actuator, or one with a name that is taken."""


def test_what_is_no_actuator_is_left_out(package: Path) -> None:
    """Whatever its import, its name or its construction raise, an exit included: the others are loaded."""
    points = {"first": "rebalancing:Rebalancer", **NO_ACTUATORS}
    install(package, "".join(f"{name} = {target}\n" for name, target in points.items()))
    invalidate_caches()
    log = Log()
    assert [actuator.name for actuator in load_actuators(log)] == ["rebalancer"]
    assert sorted(name for _, name in log.events) == sorted(NO_ACTUATORS)


@pytest.mark.parametrize("bad", ["raising", "exiting", "garbage", "late"])
async def test_an_actuator_that_misbehaves_spoils_no_plan_of_another(package: Path, bad: str) -> None:
    """It raises what has no text, exits, returns no text, or loses its name: its fault is logged, the others plan."""
    install(package, f"bad = rebalancing:{bad.title()}\ngood = rebalancing:Rebalancer\n")
    invalidate_caches()
    log = Log()
    adviser = ActionAdviser(lambda: (HOT, GROWING), load_actuators(log), log)
    for _ in range(2):
        await adviser.look()
    assert log.events == ([] if bad == "late" else [("actuator_failed", bad)])
    assert adviser.view()[0]["plans"]["rebalancer"] == "spread experts of moe anew"
