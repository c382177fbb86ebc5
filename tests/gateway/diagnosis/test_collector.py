"""What the collector reports of the gateway itself can be judged: windows are long enough, and hold nothing older."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diagnosis.facts import GatewayLoad
from diagnosis.recipe import Indication
from diagnosis.recipes.registry import BY_NAME
from diagnosis.scene import Scene
from gateway.diagnosis.collector import FactCollector
from gateway.diagnosis.doctor import LOOK_INTERVAL_S
from routing.decision.router import Router
from scorers.registry import routings

START_S = 1_795_186_398.0


class Host:
    """A collector without pods, its clock, and the CPU time of its process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = START_S
        self.cpu_s = 7.0
        monkeypatch.setattr(time, "process_time", lambda: self.cpu_s)
        census = SimpleNamespace(servers=dict)
        self.collector = FactCollector(
            Router(routings()["warm"]),
            cast("Any", SimpleNamespace(pods=(), census=census)),
            clock=lambda: self.now_s,
            wall_clock=lambda: self.now_s,
            count_fresh=lambda: None,
            wanted=frozenset,
        )

    async def named(
        self, seconds: float, *, cpu: float = 0.1, redis_s: float = 0.001, lag_s: float = 0.001
    ) -> set[str]:
        """Look every 5 s for so long at a process with this load. Returns what the last look indicates."""
        for _ in range(int(seconds / LOOK_INTERVAL_S)):
            self.now_s += LOOK_INTERVAL_S
            self.cpu_s += cpu * LOOK_INTERVAL_S
            self.collector.note_redis(redis_s)
            for _ in range(4):
                self.collector.note_lag(lag_s)
            facts = await self.collector.collect()
        (self.load,) = facts.gateways
        scene = Scene(facts, None, self.now_s)
        names = ("gateway_saturated", "redis_slow")
        return {name for name in names for each in BY_NAME[name].look(scene) if isinstance(each, Indication)}

    load: GatewayLoad


async def test_a_gateway_that_is_saturated_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its window is that of pods: half a minute at most, and long enough from the second look on."""
    host = Host(monkeypatch)
    assert await host.named(10.0, cpu=0.98, lag_s=0.2) == {"gateway_saturated"}
    assert host.load.cpu == pytest.approx(0.98)
    assert await host.named(60.0) == set()
    assert host.load.end_s - host.load.start_s == 30.0
    assert host.load.cpu == pytest.approx(0.1)


async def test_a_slow_redis_is_found_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within half a minute each: a ping every 5 s, of which those of the window count."""
    host = Host(monkeypatch)
    assert await host.named(120.0) == set()
    assert await host.named(30.0, redis_s=0.08) == {"redis_slow"}
    assert await host.named(30.0) == set()


async def test_pings_that_wait_in_the_gateways_own_loop_are_no_slow_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that is short of CPU everything is late by as much."""
    assert await Host(monkeypatch).named(30.0, redis_s=0.05, lag_s=0.045) == set()


async def test_a_clock_that_is_set_back_keeps_no_load_of_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window begins with the next look."""
    host = Host(monkeypatch)
    await host.named(60.0)
    host.now_s -= 3_600.0
    assert await host.named(10.0, redis_s=0.08) == set()
    assert (host.load.end_s - host.load.start_s, host.load.requests) == (5.0, 0.0)
    assert await host.named(10.0, redis_s=0.08) == {"redis_slow"}
