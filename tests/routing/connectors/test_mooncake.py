"""Mooncake: a transfer id of ours, and the engine id that the bootstrap server told."""

import pytest

from routing.connectors.mooncake import Mooncake
from routing.connectors.shape import InvalidTransferParams, TransferMode
from routing.facts import PodFacts
from tests.routing.connectors.meetings import KEY, meeting

PREFILL = PodFacts(bootstrap="10.0.0.1:8998")


def test_both_legs_name_the_same_transfer() -> None:
    """The decode leg can be told before the prefill leg has been answered."""
    met = meeting(PREFILL, engine_id="75b1fe15")
    assert Mooncake().terms.transfer_mode is TransferMode.CONCURRENT
    assert Mooncake().ask(met) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": f"xfer-{KEY}",
    }
    assert Mooncake().hand(met, None) == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": f"xfer-{KEY}",
        "remote_bootstrap_addr": "http://10.0.0.1:8998",
        "remote_engine_id": "75b1fe15",
    }


def test_what_the_prefill_engine_held_is_sent_where_it_is_known() -> None:
    """Else all that was moved counts as cached."""
    reported = Mooncake().hand(meeting(PREFILL, engine_id="e", cached_tokens=128), None)
    assert reported is not None
    assert reported["remote_prefill_cached_tokens"] == 128


def test_without_an_engine_id_nothing_is_passed_on() -> None:
    """The bootstrap server did not answer; and a pod without one prefills for nobody."""
    with pytest.raises(InvalidTransferParams):
        Mooncake().hand(meeting(PREFILL), None)
    assert not Mooncake().may_prefill(PodFacts())
