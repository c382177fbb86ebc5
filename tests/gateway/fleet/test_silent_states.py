"""What would otherwise be silent: pods that were never well, and sources that find nothing. One warning each."""

from __future__ import annotations

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.probe import ProbeResult
from gateway.fleet.watcher import FIXES, ProbeIntervals
from routing.pods import PodState
from tests.gateway.fake_pod import FakePod, fake_pods
from tests.gateway.kv_index.redis_servers import free_port
from tests.gateway.watch import Told, static, watching

DEAD = "pod_never_healthy"
EMPTY = "source_empty"
AT_ONCE = ProbeIntervals(probe_s=0.02, scrape_s=0.02, list_s=0.02, min_probe_s=0.0, report_dead_s=0.0)


async def test_a_pod_that_is_dead_from_the_start_is_reported_once() -> None:
    """However often it is probed; a pod beside it that is well is not reported."""
    well, dead = FakePod(), f"http://127.0.0.1:{free_port()}"
    async with fake_pods(well), watching(static(well.url, dead), rhythm=AT_ONCE) as watch:
        await well.pulse.until(lambda: (DEAD, dead) in watch.received.events)
        assert list(watch.watcher.standing_warnings()) == [(DEAD, dead)]
        looks = well.requested["health"]
        await well.pulse.until(lambda: well.requested["health"] > looks + 5)
    assert [event for event in watch.received.events if event[0] == DEAD] == [(DEAD, dead)]


async def test_a_pod_whose_health_is_not_200_from_the_start_is_reported() -> None:
    """As one whose URL is another service's; once it is well it is used like any other."""
    pod = FakePod(health=404)
    async with fake_pods(pod), watching(static(pod.url), rhythm=AT_ONCE) as watch:
        await pod.pulse.until(lambda: (DEAD, pod.url) in watch.received.events)
        pod.health = 200
        await watch.stands(pod.url, PodState.READY)


def test_what_is_reported_of_a_dead_pod() -> None:
    """Not before its time, once, never where a probe found it well or its source says that it is not ready."""
    for health in FIXES:
        pod = WatchedPod(DiscoveredPod("http://a:1"))
        assert not pod.should_report_dead(0.0, 10.0)
        pod.apply_health(health, 5.0)
        assert [pod.should_report_dead(now_s, 10.0) for now_s in (14.9, 15.0, 16.0)] == [False, True, False]
    well, held = WatchedPod(DiscoveredPod("http://a:1")), WatchedPod(DiscoveredPod("http://a:1", held=PodState.UNREADY))
    well.apply_health(ProbeResult.HEALTHY, 0.0)
    for pod in (well, held):
        pod.apply_health(ProbeResult.UNREACHABLE, 1.0)
        assert not pod.should_report_dead(100.0, 10.0)


def test_every_state_of_a_dead_pod_has_its_fix() -> None:
    """All that a probe can find but well."""
    assert set(FIXES) == set(ProbeResult) - {ProbeResult.HEALTHY}


@pytest.mark.parametrize("first", [(), ("http://127.0.0.1:1",)], ids=["from the start", "later"])
async def test_a_source_that_finds_nothing_is_reported_once(first: tuple[str, ...]) -> None:
    """From the start or when its last pod has gone; the static list may be empty."""
    source = Told()
    pod = FakePod()
    async with fake_pods(pod), watching(source, static()) as watch:
        if first:
            source.tell(*first)
        source.tell()
        source.tell()
        source.tell(pod.url)
        await watch.stands(pod.url, PodState.READY)
        assert list(watch.watcher.standing_warnings()) == []
        assert [event for event in watch.received.events if event[0] == EMPTY] == [(EMPTY, None)]
        watch.watcher._take_found(source, ())
        assert list(watch.watcher.standing_warnings()) == [(EMPTY, source.name)]
