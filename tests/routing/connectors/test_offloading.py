"""Offloading's p2p tier: one key for both legs, and blocks read from any warm peer."""

from routing.connectors.offloading import Offloading
from routing.facts import PodFacts
from tests.routing.connectors.meetings import KEY, meeting

PEER = PodFacts(side_channel="10.0.0.1:5710")


def test_both_legs_have_one_key() -> None:
    """And the decode leg the prefill pod's address."""
    met = meeting(PEER)
    at = {"kv_request_id": KEY, "remote_host": "10.0.0.1", "remote_port": 5710}
    assert Offloading().ask(met) == {"remote_decoder": {"kv_request_id": KEY}}
    assert Offloading().hand(met, None) == {"remote_prefiller": at}
    assert Offloading().pull(met) == {"remote_kv_source": at}


def test_a_pod_without_an_address_is_no_source() -> None:
    """Nobody could read from it."""
    assert Offloading().may_prefill(PEER)
    assert not Offloading().may_prefill(PodFacts())
    assert Offloading().may_decode(PodFacts())
