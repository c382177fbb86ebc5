"""A replay is charged while it runs, leaves its prefix in the index, and nothing in the ledger."""

from __future__ import annotations

from routing.decision.replayed_prompt import ReplayedPrompt
from routing.decision.router import Router
from routing.replica_state import ReplicaState, UpdatePublisher
from tests.routing.engines import ask, router_of


def held(router: Router, pod: int = 1) -> int:
    """Size of the prompt that an engine is taken to hold."""
    engine = router.fleet.engine(f"http://{pod}")
    assert engine is not None
    return sum(size for _, size in router.index.match(ask().prompt, 1 << engine.slot))


def replay(router: Router) -> ReplayedPrompt:
    engine = router.fleet.engine("http://1")
    assert engine is not None
    return ReplayedPrompt(router, ask(), engine, 2_000.0, 1.0)


def test_a_replay_is_load_until_it_ends_and_a_cached_prefix_then() -> None:
    """Here and at a peer, which hears of it as of a request."""
    router, peer = router_of(2), router_of(2)
    publisher, applier = UpdatePublisher(), ReplicaState(peer)
    router.subscribe(publisher)
    running = replay(router)
    applier.apply(1, 1, publisher.take(), 1.0)
    assert sum(router.ledger.running) == sum(peer.ledger.running) == 1
    running.end(2.0, is_computed=True)
    applier.apply(1, 2, publisher.take(), 2.0)
    for each in (router, peer):
        assert each.ledger.is_empty()
        assert held(each) > 0
        assert held(each, 0) == 0


def test_a_replay_that_failed_leaves_nothing() -> None:
    """The engine never said that it has computed it."""
    router = router_of(2)
    replay(router).end(2.0, is_computed=False)
    assert router.ledger.is_empty()
    assert held(router) == 0


def test_a_pod_that_goes_meanwhile_gets_its_slot_recycled() -> None:
    """Once nothing is charged to it."""
    router = router_of(2)
    running = replay(router)
    router.remove_pod("http://1")
    assert router.retired
    running.end(2.0, is_computed=False)
    assert not router.retired
