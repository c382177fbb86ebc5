"""Whom the watcher watches: what sources say of pods, and when enough of them is known to serve."""

import asyncio
from dataclasses import replace

from aiohttp import web

from gateway.config.discovery import DiscoveredPod
from gateway.config.models import ModelEntry
from routing.facts import PodFacts, Role
from routing.pods import PodState
from tests.gateway.fake_pod import FakePod, fake_pods, metrics_page
from tests.gateway.watch import FAST, Told, static, watching


async def test_nothing_is_ready_before_all_pods_were_looked_at() -> None:
    """A model of the pod that is slow to answer would be refused."""
    quick, slow = FakePod(), FakePod(hangs=True)
    async with fake_pods(quick, slow), watching(static(quick.url, slow.url), timeout_s=3600) as watch:
        await watch.stands(quick.url, PodState.READY)
        assert not watch.watcher.is_ready()
        looking = asyncio.create_task(watch.watcher.wait_for_first_probes(3600))
        await slow.stop()
        await looking
        assert watch.watcher.is_ready()


async def test_a_pod_was_looked_at_when_its_models_are_known() -> None:
    """Though another's look ends while this one is well and has not yet told them."""
    may_tell = asyncio.Event()

    class SlowLister(FakePod):
        async def _models(self, request: web.Request) -> web.Response:
            await may_tell.wait()
            return await super()._models(request)

    slow, quick = SlowLister(), FakePod()
    async with fake_pods(slow, quick), watching(static(slow.url, quick.url), timeout_s=3600) as watch:
        await slow.pulse.until(lambda: slow.requested.get("health", 0) > 0)
        looks = quick.requested.get("health", 0)
        await quick.pulse.until(lambda: quick.requested.get("health", 0) > looks + 3)
        assert not watch.watcher.has_looked.is_set()
        may_tell.set()
        await watch.watcher.has_looked.wait()
        assert watch.pod(slow.url).state is PodState.READY


async def test_a_source_that_says_nothing_is_not_waited_for_for_ever() -> None:
    """What others have told may be had then."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url), Told()) as watch:
        await watch.stands(pod.url, PodState.READY)
        assert not watch.watcher.is_ready()
        await watch.watcher.wait_for_first_probes(0.01)
        assert not watch.watcher.has_looked.is_set()
        assert watch.watcher.is_ready()


async def test_what_is_not_known_yet_is_not_stated_to_be_none() -> None:
    """While a source or a pod has not told; nor ever of a model that the operator names."""
    quick, slow, source, models = FakePod(), FakePod(health=503), Told(), {"asleep": ModelEntry("asleep")}
    async with fake_pods(quick, slow), watching(static(quick.url), source, models=models) as watch:
        fleet = watch.router.fleet
        await watch.stands(quick.url, PodState.READY)
        assert fleet.may_discover_more()
        source.tell(slow.url)
        await slow.pulse.until(lambda: slow.requested.get("health", 0) > 1)
        assert fleet.is_complete
        assert fleet.may_discover_more()
        slow.health = 200
        await watch.stands(slow.url, PodState.READY)
        assert not fleet.may_discover_more()
        assert fleet.lacks_named("asleep")
        watch.watcher.replace_models({})
        assert not fleet.lacks_named("asleep")


async def test_a_pod_is_what_its_sources_report() -> None:
    """Its facts and its role, also when they change; held by its source it gets nothing however well it is."""
    pod = FakePod(page=metrics_page())
    source = Told()
    async with fake_pods(pod), watching(source) as watch:
        source.tell_of(DiscoveredPod(pod.url, facts=PodFacts(role=Role.PREFILL)))
        known = await watch.stands(pod.url, PodState.READY)
        assert [engine.role for engine in known.engines] == [Role.PREFILL]
        source.tell_of(DiscoveredPod(pod.url, facts=PodFacts(role=Role.DECODE), held=PodState.UNREADY))
        known = await watch.stands(pod.url, PodState.UNREADY)
        assert [engine.role for engine in known.engines] == [Role.DECODE]
        assert known.facts.role is Role.DECODE
        source.tell_of(DiscoveredPod(pod.url, held=PodState.DRAINING))
        await watch.stands(pod.url, PodState.DRAINING)
        source.tell_of(DiscoveredPod(pod.url))
        await watch.stands(pod.url, PodState.READY)


async def test_a_model_of_a_pool_is_served_by_its_pods_only() -> None:
    """Whatever others say they serve."""
    inside, outside = FakePod(), FakePod()
    source = Told()
    models = {"tiny": ModelEntry("tiny", inference_pool="p")}
    async with fake_pods(inside, outside), watching(source, models=models) as watch:
        source.tell_of(DiscoveredPod(inside.url, "p"), DiscoveredPod(outside.url))
        assert (await watch.stands(inside.url, PodState.READY)).models == {"tiny"}
        assert (await watch.stands(outside.url, PodState.READY)).models == set()


async def test_a_source_that_breaks_is_followed_again() -> None:
    """And breaks nothing else."""
    pod = FakePod()
    source = Told()
    async with fake_pods(pod), watching(source, rhythm=replace(FAST, list_s=0.01)) as watch:
        source.break_down()
        source.tell(pod.url)
        await watch.stands(pod.url, PodState.READY)
        assert ("source_failed", None) in watch.received.events
