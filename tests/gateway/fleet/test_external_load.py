"""What a scrape shows, and what engines push, beyond our own load is external."""

from __future__ import annotations

from math import inf

from gateway.fleet.external_load import PushedLoad, apply_scrape, own_load_at
from gateway.fleet.scrape import EngineReading, MetricsPage
from routing.decision.router import Router
from routing.ledger import NO_EXTERNAL_LOAD, ExternalLoad
from routing.pod_record import AgentRecord, EngineLoad, RegisteredPod
from routing.pods import EngineShape, Pod
from scorers.registry import routings
from tests.routing.engines import add_pod, ask, place, router_of

URL = "http://0"


def seen(router: Router, *readings: EngineReading) -> list[ExternalLoad]:
    """What is held for foreign after a page of these readings, by rank, with what is now ours."""
    apply_scrape(router, URL, MetricsPage(dict(enumerate(readings))), own_load_at(router, URL), 7.0)
    return list(router.ledger.external)


def test_what_is_ours_is_not_counted_twice() -> None:
    """Of five requests and half of the memory two are ours; those who wait are foreign before those who run."""
    router = router_of(1)
    held = [place(router, ask(sequences=2))]
    own = own_load_at(router, URL)[0]
    (foreign,) = seen(router, EngineReading(running=3, waiting=2, kv_usage=0.5))
    assert foreign == ExternalLoad(running=3, waiting=2, kv_tokens=50_000 - own[1], at_s=7.0)
    held.append(place(router, ask(sequences=9)))
    (foreign,) = seen(router, EngineReading(running=3, waiting=2, kv_usage=0.0))
    assert foreign == ExternalLoad(at_s=7.0)


def test_what_was_ours_while_the_page_was_on_its_way_is_not_external() -> None:
    """Whether it has ended since the page was asked for, or has begun."""
    router = router_of(1)
    idle = own_load_at(router, URL)
    placement = place(router, ask())
    busy = own_load_at(router, URL)
    apply_scrape(router, URL, MetricsPage({0: EngineReading(running=1)}), idle, 7.0)
    assert router.ledger.external == [ExternalLoad(at_s=7.0)]
    placement.release(1.0)
    apply_scrape(router, URL, MetricsPage({0: EngineReading(running=1)}), busy, 8.0)
    assert router.ledger.external == [ExternalLoad(at_s=8.0)]


def test_an_engine_of_several_has_the_reading_of_its_rank() -> None:
    """One that its page does not name keeps what was seen before; what a store has found is told too."""
    router = router_of(0)
    add_pod(router, URL, ranks=(0, 1, 2))
    foreign = seen(router, EngineReading(running=1, store_asked=0), EngineReading(running=4, store_asked=0))
    assert [each.running for each in foreign] == [1, 4, 0]
    assert foreign[2] == NO_EXTERNAL_LOAD
    seen(router, EngineReading(), EngineReading(store_asked=10_000, store_found=10_000))
    assert set(router.stores.shares) == {1}


def test_a_pod_that_has_left_while_it_was_called_is_unowned() -> None:
    """Nothing is told of it."""
    router = router_of(0)
    assert own_load_at(router, URL) == {}
    assert seen(router, EngineReading(running=1)) == []


PUSHED_URL = "http://10.0.0.7:8000"


class Scene:
    """A router with one pod of two engines, and a clock of our own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.router = Router(routings()["warm"])
        self.router.put_pod(Pod(PUSHED_URL))
        self.router.reshape_pod(PUSHED_URL, (EngineShape(0, kv_tokens=1000), EngineShape(1, kv_tokens=1000)))
        self.pushed = PushedLoad(self.router, lambda: self.now_s)
        pod = self.router.fleet.pod(PUSHED_URL)
        assert pod is not None
        self.slots = [engine.slot for engine in pod.engines]

    def push(self, *loads: EngineLoad, url: str = PUSHED_URL) -> None:
        self.pushed.apply(AgentRecord("a", 1, 15.0, (RegisteredPod(url, loads=loads),)))


def test_figures_become_external_load() -> None:
    """By rank, at the time when they were taken."""
    scene = Scene()
    scene.push(EngineLoad(1, running=3, waiting=2, kv_usage=0.5, age_s=0.25))
    first, second = (scene.router.ledger.external[slot] for slot in scene.slots)
    assert first is NO_EXTERNAL_LOAD or first.at_s == -inf
    assert (second.running, second.waiting, second.kv_tokens, second.at_s) == (5, 2, 500, 99.75)


def test_our_own_is_not_external() -> None:
    """What we have there now, or had when figures came last: it may have ended since."""
    scene = Scene()
    slot = scene.slots[0]
    held = scene.router.ledger.charge(slot, prefill_tokens=0.0, prefill_s=0.0, kv_tokens=300.0, sequences=1, now_s=0.0)
    scene.push(EngineLoad(0, running=1, kv_usage=0.3))
    assert scene.router.ledger.external[slot].running == 0
    scene.router.ledger.release(held, 1.0)
    scene.push(EngineLoad(0, running=1, kv_usage=0.3))
    assert scene.router.ledger.external[slot].running == 0
    scene.push(EngineLoad(0, running=1, kv_usage=0.3))
    assert scene.router.ledger.external[slot].running == 1


def test_pods_that_are_not_ours_are_passed_over() -> None:
    """And so are records that hold no figures."""
    scene = Scene()
    scene.push(EngineLoad(0, running=9), url="http://elsewhere:1")
    scene.push()
    assert scene.pushed.taken == 0
