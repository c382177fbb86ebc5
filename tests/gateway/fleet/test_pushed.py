"""Figures that engines push: what is there beyond our own is foreign, and nobody else is touched."""

from math import inf

from gateway.discovery.record import EngineLoad, Record, Registered
from gateway.fleet.pushed import Pushed
from routing.decision.router import Router
from routing.ledger import NOTHING_FOREIGN
from routing.pods import EngineShape, Pod
from scorers.registry import routings

URL = "http://10.0.0.7:8000"


class Scene:
    """A router with one pod of two engines, and a clock of our own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.router = Router(routings()["warm"])
        self.router.put_pod(Pod(URL))
        self.router.reshape_pod(URL, (EngineShape(0, kv_tokens=1000), EngineShape(1, kv_tokens=1000)))
        self.pushed = Pushed(self.router, lambda: self.now_s)
        pod = self.router.fleet.pod(URL)
        assert pod is not None
        self.slots = [engine.slot for engine in pod.engines]

    def push(self, *loads: EngineLoad, url: str = URL) -> None:
        self.pushed.take(Record("a", 1, 15.0, (Registered(url, loads=loads),)))


def test_figures_become_foreign_load() -> None:
    """By rank, at the time when they were taken."""
    scene = Scene()
    scene.push(EngineLoad(1, running=3, waiting=2, kv_usage=0.5, age_s=0.25))
    first, second = (scene.router.ledger.foreign[slot] for slot in scene.slots)
    assert first is NOTHING_FOREIGN or first.at_s == -inf
    assert (second.running, second.waiting, second.kv_tokens, second.at_s) == (5, 2, 500, 99.75)


def test_our_own_is_not_foreign() -> None:
    """What we have there now, or had when figures came last: it may have ended since."""
    scene = Scene()
    slot = scene.slots[0]
    held = scene.router.ledger.charge(slot, prefill_tokens=0.0, prefill_s=0.0, kv_tokens=300.0, sequences=1, now_s=0.0)
    scene.push(EngineLoad(0, running=1, kv_usage=0.3))
    assert scene.router.ledger.foreign[slot].running == 0
    scene.router.ledger.release(held, 1.0)
    scene.push(EngineLoad(0, running=1, kv_usage=0.3))
    assert scene.router.ledger.foreign[slot].running == 0
    scene.push(EngineLoad(0, running=1, kv_usage=0.3))
    assert scene.router.ledger.foreign[slot].running == 1


def test_pods_that_are_not_ours_are_passed_over() -> None:
    """And so are records that hold no figures."""
    scene = Scene()
    scene.push(EngineLoad(0, running=9), url="http://elsewhere:1")
    scene.push()
    assert scene.pushed.taken == 0
