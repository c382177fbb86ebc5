"""What we have on an engine is told apart from what others told us they have there, though both stand in one ledger."""

from gateway.config.discovery import DiscoveredPod
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.view import show_fleet
from gateway.observe.metrics.fleet import FleetCollector
from gateway.observe.metrics.process import make_registry
from gateway.replica_sync.peer_load import PeerLoad, own_load
from tests.routing.engines import ask, place
from tests.routing.exchanges import talker, tell_all


def test_own_load_is_shown_next_to_that_of_others() -> None:
    """In metrics only ours, so that the sum over all gateways is right; in the fleet view both."""
    here, there = talker(1, 1), talker(2, 1)
    ours = place(here.router, ask())
    theirs = [place(there.router, ask()) for _ in range(2)]
    tell_all([here, there], 0.1)
    ledger, slot, others = here.router.ledger, ours.engine.slot, PeerLoad(here.hearing)
    assert [each.engine.slot for each in theirs] == [slot, slot]
    assert ledger.running[slot] == 3
    assert (others.load()[slot].running, own_load(ledger, slot, others.load()).running) == (2, 1)

    registry = make_registry()
    registry.register(FleetCollector(here.router, lambda: 0, lambda: 0, dict, others.load))
    assert (
        registry.get_sample_value("hearth_engine_running_requests", {"upstream": ours.engine.name, "dp_rank": "0"}) == 1
    )

    view = show_fleet(here.router, [WatchedPod(DiscoveredPod(ours.engine.pod))], 0.1, others.load())
    (shown,) = [engine for pod in view["pods"] for engine in pod["engines"]]
    assert (shown["own_load"]["running"], shown["peer_load"]["running"]) == (1, 2)
    assert shown["own_load"]["kv_tokens"] + shown["peer_load"]["kv_tokens"] == round(ledger.kv_tokens[slot])

    alone = PeerLoad()
    assert own_load(ledger, slot, alone.load()).running == 3
