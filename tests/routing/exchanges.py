"""Routers that hear each other, for the tests of news: every batch can be lost, told twice or held back."""

from dataclasses import dataclass, field

from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.replica_state import ReplicaState, StateUpdate, UpdatePublisher
from scorers.registry import routings
from tests.routing.engines import add_pod


@dataclass
class Talker:
    """A router that says what it does, and hears others."""

    name: int
    router: Router
    voice: UpdatePublisher
    hearing: ReplicaState
    batches: int = 0
    placements: list[Placement] = field(default_factory=list)

    def batch(self) -> tuple[int, int, list[StateUpdate]]:
        """What it has said, as the next batch."""
        self.batches += 1
        return self.name, self.batches, self.voice.take()


def talker(name: int, pods: int) -> Talker:
    voice = UpdatePublisher()
    router = Router(routings()["warm"])
    router.subscribe(voice)
    for number in range(pods):
        add_pod(router, f"http://{number}")
    return Talker(name, router, voice, ReplicaState(router))


def pair(pods: int = 3) -> tuple[Talker, Talker]:
    return talker(1, pods), talker(2, pods)


def tell_all(talkers: list[Talker], now_s: float) -> None:
    """Everybody hears what everybody else has said."""
    for stated in [one.batch() for one in talkers]:
        for other in talkers:
            if other.name != stated[0]:
                other.hearing.apply(*stated, now_s)


def loads(router: Router) -> dict[str, tuple[float, float, int]]:
    """Load of each engine that has any, to a hundredth of a token: below that the order of adding shows."""
    ledger = router.ledger
    found = {}
    for pod in router.fleet.pods:
        for engine in pod.engines:
            slot = engine.slot
            load = (round(ledger.prefill_tokens[slot], 2), round(ledger.kv_tokens[slot], 2), ledger.running[slot])
            if any(load):
                found[engine.name] = load
    return found
