"""The watcher keeps the fleet as the pods are: it finds them, probes them, and hears from requests how they behave."""

import asyncio
from contextlib import AsyncExitStack
from math import inf

from gateway.config.models import ModelEntry
from gateway.discovery.source import StaticSource
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.watcher import FleetWatcher, ProbeIntervals
from gateway.pipeline.attempt import AttemptStatus
from routing.pods import Pod, PodState
from routing.request import Api, Request
from tests.gateway.fake_pod import FakePod, fake_pods, metrics_page
from tests.gateway.watch import FAST, Heard, TellingRouter, Told, placed, static, watching


async def test_pods_that_stand_at_the_start_are_ready_without_slow_start() -> None:
    """With their models, adapters and engines as they tell them."""
    pod = FakePod(page=metrics_page(ranks=2))
    pod.models.append({"id": "ad", "parent": "tiny"})
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        assert not watch.watcher.is_ready()
        known = await watch.stands(pod.url, PodState.READY)
        assert watch.watcher.is_ready()
        assert known.ready_since_s == -inf
        assert (sorted(known.models), sorted(known.adapters)) == (["ad", "tiny"], ["ad"])
        assert [(engine.rank, engine.kv_tokens, engine.block_tokens) for engine in known.engines] == [
            (0, 1600, 16),
            (1, 1600, 16),
        ]


async def test_a_pod_without_metrics_is_usable() -> None:
    """One engine of unknown size."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        known = await watch.stands(pod.url, PodState.READY)
        assert [(engine.rank, engine.kv_tokens) for engine in known.engines] == [(None, None)]


async def test_a_pod_that_dies_is_broken_and_comes_back_slowly() -> None:
    """Found by its probe, told to who holds its streams, warmth forgotten, slow start among those that went on."""
    dying, other = FakePod(page=metrics_page(started=1e9)), FakePod()
    async with fake_pods(dying, other), watching(static(other.url, dying.url)) as watch:
        await watch.stands(other.url, PodState.READY)
        await watch.stands(dying.url, PodState.READY)
        await watch.until(lambda: watch.watcher.pods[1].metrics is not None)
        await dying.stop()
        await watch.stands(dying.url, PodState.OPEN_CIRCUIT)
        assert watch.watcher.is_ready()
        assert ("breaker_opened", dying.url) in watch.received.events
        assert dying.url in watch.gone
        dying.page = metrics_page(started=2e9)
        await dying.start()
        known = await watch.stands(dying.url, PodState.READY)
        assert known.ready_since_s > 0
        assert ("pod_restarted", dying.url) in watch.received.events


async def test_a_pod_that_joins_later_starts_slowly() -> None:
    """Where others are at work, and only once we ourselves have settled."""
    early, late = FakePod(), FakePod(health=503)
    rhythm = ProbeIntervals(probe_s=0.02, startup_s=0.0)
    async with fake_pods(early, late), watching(static(early.url, late.url), rhythm=rhythm) as watch:
        assert (await watch.stands(early.url, PodState.READY)).ready_since_s == -inf
        late.health = 200
        assert (await watch.stands(late.url, PodState.READY)).ready_since_s > 0


async def test_a_new_pod_is_held_back_until_its_warm_up_has_ended() -> None:
    """Slow start begins then; once for each start of the pod, and never for pods that ran before the gateway."""
    early, late = FakePod(), FakePod(health=503, page=metrics_page(started=1e9))
    rhythm = ProbeIntervals(probe_s=0.02, scrape_s=0.02, list_s=0.02, min_probe_s=0.0, startup_s=0.0)
    async with fake_pods(early, late), watching(static(early.url, late.url), rhythm=rhythm) as watch:
        offered = list[str]()

        def should_warm(pod: Pod) -> bool:
            offered.append(pod.url)
            return True

        watch.watcher.warm_new_pods(should_warm)
        await watch.stands(early.url, PodState.READY)
        late.health = 200
        known = await watch.stands(late.url, PodState.WARMING)
        assert offered == [late.url]
        assert known.models
        watch.watcher.end_warmup(late.url)
        assert watch.pod(late.url).state is PodState.READY
        assert watch.pod(late.url).ready_since_s > 0
        late.health = 503
        await watch.stands(late.url, PodState.UNREADY)
        late.health = 200
        await watch.stands(late.url, PodState.READY)
        assert offered == [late.url], "its cache is still there"
        await late.stop()
        await watch.stands(late.url, PodState.OPEN_CIRCUIT)
        late.page = metrics_page(started=2e9)
        await late.start()
        await watch.stands(late.url, PodState.WARMING)
        watch.watcher.end_warmup("http://unknown:1")


async def test_a_decision_about_a_warm_up_that_raises_lets_the_pod_go() -> None:
    """It is reported, and the pod takes load."""
    early, late = FakePod(), FakePod(health=503)
    rhythm = ProbeIntervals(probe_s=0.02, startup_s=0.0)
    async with fake_pods(early, late), watching(static(early.url, late.url), rhythm=rhythm) as watch:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        def broken(_: Pod) -> bool:
            raise RuntimeError

        watch.watcher.warm_new_pods(broken)
        await watch.stands(early.url, PodState.READY)
        late.health = 200
        await watch.stands(late.url, PodState.READY)
        assert [str(each["message"]) for each in reported] == ["exception in warm-up"]


async def test_a_pod_that_says_it_is_not_ready_gets_nothing() -> None:
    """Readiness of the gateway is that of its pods."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        await watch.stands(pod.url, PodState.READY)
        pod.health = 503
        await watch.stands(pod.url, PodState.UNREADY)
        assert not watch.watcher.is_ready()


async def test_failing_requests_open_the_breaker_though_the_probe_is_well() -> None:
    """Three in a row; busy is not broken; an answer between them counts."""
    pod = FakePod()
    slow = ProbeIntervals(probe_s=60)
    async with fake_pods(pod), watching(static(pod.url), rhythm=slow) as watch:
        await watch.stands(pod.url, PodState.READY)
        for end in (
            AttemptStatus.CONNECTION_RESET,
            AttemptStatus.UPSTREAM_5XX,
            AttemptStatus.OK,
            AttemptStatus.UPSTREAM_BUSY,
            AttemptStatus.TIMEOUT,
            AttemptStatus.UPSTREAM_BUSY,
            AttemptStatus.CONNECTION_RESET,
        ):
            watch.watcher.on_attempt_end(pod.url, end)
        assert watch.pod(pod.url).state is PodState.READY
        watch.watcher.on_attempt_end(pod.url, AttemptStatus.INVALID_RESPONSE)
        assert watch.pod(pod.url).state is PodState.SUSPECT
        assert watch.watcher.is_ready(), "it is better than nobody"
        watch.watcher.on_attempt_end("http://unknown:1", AttemptStatus.CONNECTION_RESET)


async def test_what_is_nobodys_fault_is_not_held_against_a_pod() -> None:
    """One that says something else than another, or would not go on with what that one began, is as well as before."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url), rhythm=ProbeIntervals(probe_s=60)) as watch:
        await watch.stands(pod.url, PodState.READY)
        for end in (
            AttemptStatus.REPLAY_MISMATCH,
            AttemptStatus.CONTINUATION_REJECTED,
            AttemptStatus.KV_TRANSFER_TIMEOUT,
        ) * 3:
            assert not watch.watcher.on_attempt_end(pod.url, end)
        assert watch.pod(pod.url).state is PodState.READY


async def test_it_is_reported_whether_a_pod_was_failing_before() -> None:
    """The first failure is not known of before it; an answer ends it; of pods that nobody knows nothing is known."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url), rhythm=ProbeIntervals(probe_s=60)) as watch:
        await watch.stands(pod.url, PodState.READY)
        ends = (
            AttemptStatus.UPSTREAM_5XX,
            AttemptStatus.UPSTREAM_BUSY,
            AttemptStatus.CONNECTION_RESET,
            AttemptStatus.OK,
            AttemptStatus.UPSTREAM_5XX,
        )
        assert [watch.watcher.on_attempt_end(pod.url, end) for end in ends] == [False, True, True, True, False]
        assert not watch.watcher.on_attempt_end("http://unknown:1", AttemptStatus.UPSTREAM_5XX)


async def test_a_rejected_connection_is_looked_into_at_once() -> None:
    """The next probe does not wait for its turn."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url), rhythm=ProbeIntervals(probe_s=60, min_probe_s=0)) as watch:
        await watch.stands(pod.url, PodState.READY)
        await pod.stop()
        watch.watcher.on_attempt_end(pod.url, AttemptStatus.UNREACHABLE)
        await watch.stands(pod.url, PodState.OPEN_CIRCUIT)


async def test_drain_and_undrain() -> None:
    """A drained pod stays known and gets nothing; undrained it goes on as before."""
    pod = FakePod()
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        await watch.stands(pod.url, PodState.READY)
        assert watch.watcher.drain(pod.url, drained=True)
        assert watch.pod(pod.url).state is PodState.DRAINING
        assert not watch.watcher.is_ready()
        assert watch.watcher.drain(pod.url, drained=False)
        assert watch.pod(pod.url).state is PodState.READY
        assert watch.pod(pod.url).ready_since_s == -inf
        assert not watch.watcher.drain("http://unknown:1", drained=True)


async def test_a_pod_that_was_drained_before_is_never_chosen() -> None:
    """A worker that starts again goes by what its siblings were told; a pod that has gone is forgotten with it."""
    router, found = TellingRouter(), Told()
    async with fake_pods(pod := FakePod()), probe_session() as session:
        watcher = FleetWatcher(
            router,
            [found],
            Prober(session, lambda _: None),
            log_event=Heard(),
            clock=asyncio.get_running_loop().time,
            draw=lambda: 0.5,
            rhythm=FAST,
        )
        watcher.set_drained([pod.url])
        watcher.set_drained([pod.url], drained=False)
        watcher.set_drained([pod.url])
        task = asyncio.create_task(watcher.run())
        found.tell(pod.url)
        await router.pulse.until(lambda: router.standings() == [PodState.DRAINING])
        watcher.set_drained([pod.url], drained=False)
        await router.pulse.until(lambda: router.standings() == [PodState.READY])
        watcher.set_drained([pod.url])
        await router.pulse.until(lambda: router.standings() == [PodState.DRAINING])
        found.tell()
        await router.pulse.until(lambda: router.standings() == [])
        found.tell(pod.url)
        await router.pulse.until(lambda: router.standings() == [PodState.READY])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_that_is_discovered_later_is_held_for_its_finding() -> None:
    """By a worker that starts again, and where a pod was away for a moment."""
    router, found = TellingRouter(), Told()
    async with fake_pods(pod := FakePod()), probe_session() as session:
        watcher = FleetWatcher(
            router,
            [found],
            Prober(session, lambda _: None),
            log_event=Heard(),
            clock=asyncio.get_running_loop().time,
            draw=lambda: 0.5,
            rhythm=FAST,
        )
        watcher.hold_for_findings(frozenset((pod.url,)))
        task = asyncio.create_task(watcher.run())
        found.tell(pod.url)
        await router.pulse.until(lambda: router.standings() == [PodState.DRAINING])
        watcher.hold_for_findings(frozenset())
        await router.pulse.until(lambda: router.standings() == [PodState.READY])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_is_known_when_every_pod_has_been_looked_at() -> None:
    """Whoever begins among others takes no request before; a dead pod has been looked at too."""
    slow, dead = FakePod(hangs=True), static("http://127.0.0.1:1")
    async with fake_pods(slow), watching(static(slow.url), dead, timeout_s=1.0) as watch:
        await slow.pulse.until(lambda: "health" in slow.requested)
        assert not watch.watcher.has_looked.is_set()
        async with asyncio.timeout(120):
            await watch.watcher.has_looked.wait()


async def test_load_of_others_is_what_a_scrape_shows_beyond_ours() -> None:
    """Requests and KV of others count; our own are not counted twice."""
    pod = FakePod(page=metrics_page(running=3, waiting=2, usage=0.5))
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        known = await watch.stands(pod.url, PodState.READY)
        slot = known.engines[0].slot
        ledger = watch.router.ledger
        await watch.until(lambda: ledger.external[slot].running == 5)
        assert (ledger.external[slot].waiting, ledger.external[slot].kv_tokens) == (2, 800)
        request = Request("r", Api.CHAT, "tiny", sequences=4)
        placement = watch.router.place(request, avoid=frozenset(), now_s=0, draw=0)
        await watch.until(lambda: ledger.external[slot].running == 1)
        placement.release(0)
        pod.page = metrics_page()
        await watch.until(lambda: ledger.external[slot].running == 0)


async def test_a_model_list_says_which_pods_may_serve_a_model() -> None:
    """Pods that are not named for it do not serve it, whatever they say; it can be changed while running."""
    one, two = FakePod(), FakePod()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fake_pods(one, two))
        entry = {"tiny": ModelEntry("tiny", pods=(one.url,))}
        watch = await stack.enter_async_context(watching(static(one.url, two.url), models=entry))
        await watch.stands(one.url, PodState.READY)
        await watch.stands(two.url, PodState.READY)
        assert (list(watch.pod(one.url).models), list(watch.pod(two.url).models)) == (["tiny"], [])
        watch.watcher.replace_models({})
        assert watch.pod(two.url).models == {"tiny"}


async def test_pods_come_and_go_with_their_source() -> None:
    """Another list in the place of the first: who stays keeps its standing, who is gone is forgotten."""
    one, two = FakePod(), FakePod()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fake_pods(one, two))
        first = static(one.url)
        watch = await stack.enter_async_context(watching(first))
        await watch.stands(one.url, PodState.READY)
        second = static(one.url, two.url)
        watch.watcher.replace_source(first, second)
        assert watch.pod(one.url).state is PodState.READY
        await watch.until(lambda: watch.router.fleet.pod(two.url) is not None)
        await watch.stands(two.url, PodState.READY)
        watch.watcher.replace_source(second, static(two.url))
        await watch.until(lambda: watch.router.fleet.pod(one.url) is None)
        assert [pod.url for pod in watch.watcher.pods] == [two.url]
        assert ("pod_removed", one.url) in watch.received.events


async def test_a_new_location_of_a_pod_is_an_update_like_any_other() -> None:
    """Region, pool and scheduling come from whoever found the pod, and change when they say otherwise."""
    pod = FakePod()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fake_pods(pod))
        first, second = StaticSource([placed(pod.url, "eu")]), StaticSource([placed(pod.url, "us")])
        watch = await stack.enter_async_context(watching(first))
        await watch.stands(pod.url, PodState.READY)
        assert (watch.pod(pod.url).pool, watch.pod(pod.url).region) == ("p", "eu")
        watch.watcher.replace_source(first, second)
        await watch.until(lambda: watch.pod(pod.url).region == "us")
        assert not watch.pod(pod.url).takes_priority
        watch.watcher.replace_models({"tiny": ModelEntry("tiny", takes_priority=True)})
        assert watch.pod(pod.url).takes_priority


async def test_a_pod_that_rejects_our_key_is_reported_once() -> None:
    """It is well but not usable, and the log is not filled with it."""
    pod = FakePod(models_status=401)
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        await pod.pulse.until(lambda: pod.requested.get("models", 0) > 5)
        assert watch.pod(pod.url).state is PodState.STARTING
        assert watch.received.events.count(("pod_unusable", pod.url)) == 1


async def test_quiet_pods_are_not_put_again() -> None:
    """Every put empties the rosters that decisions read: no news, no put."""
    pod = FakePod(page=metrics_page())
    async with fake_pods(pod), watching(static(pod.url)) as watch:
        await watch.stands(pod.url, PodState.READY)
        requested = pod.requested["metrics"]
        await pod.pulse.until(lambda: pod.requested["metrics"] > requested + 1)
        known = watch.pod(pod.url)
        requested = pod.requested["metrics"]
        await pod.pulse.until(lambda: pod.requested["metrics"] > requested + 3)
        assert watch.pod(pod.url) is known


async def test_no_more_probes_at_once_than_allowed() -> None:
    """Hundreds of pods are looked at a few at a time."""
    pods = [FakePod() for _ in range(4)]
    one_at_a_time = ProbeIntervals(probe_s=2, max_concurrent=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fake_pods(*pods))
        found = static(*(pod.url for pod in pods))
        watch = await stack.enter_async_context(watching(found, rhythm=one_at_a_time, timeout_s=1.0))
        pods[0].hangs = True
        for pod in pods[1:]:
            await watch.stands(pod.url, PodState.READY)
        assert watch.pod(pods[0].url).state is PodState.STARTING


async def test_a_pod_that_hangs_comes_back_when_it_shows_tokens() -> None:
    """Whatever its health says: each of its engines is asked for one, and clients are not the ones to try."""
    pod = FakePod(page=metrics_page(ranks=2), is_silent=True)
    async with fake_pods(pod), watching(static(pod.url), timeout_s=1.0) as watch:
        await watch.stands(pod.url, PodState.READY)
        watch.watcher.on_attempt_end(pod.url, AttemptStatus.ENGINE_HUNG)
        watch.watcher.on_attempt_end(pod.url, AttemptStatus.ENGINE_HUNG)
        assert watch.pod(pod.url).state is PodState.OPEN_CIRCUIT
        await pod.pulse.until(lambda: pod.requested.get("tokens", 0) >= 2)
        assert watch.pod(pod.url).state is PodState.OPEN_CIRCUIT
        assert pod.health == 200
        pod.is_silent = False
        await watch.stands(pod.url, PodState.READY)
        assert watch.received.events.count(("engine_hung", pod.url)) == 1
        assert ("engine_hang_ended", pod.url) in watch.received.events
