"""MoRI-IO: a request id that carries both addresses, and a transfer id of ours."""

import re

import pytest

from routing.connectors.moriio import MoriIo
from routing.connectors.shape import UnfitError
from routing.facts import PodFacts
from tests.routing.connectors.meetings import KEY, meeting

PREFILL = PodFacts(side_channel="10.0.0.1:7301", bootstrap="10.0.0.1:7401")
DECODE = PodFacts(side_channel="10.0.0.2:7302", bootstrap="10.0.0.2:7402")


def test_the_request_id_carries_both_addresses() -> None:
    """In the form that engines take apart."""
    request_id = MoriIo().request_id(meeting(PREFILL, DECODE))
    assert request_id == (
        "___prefill_addr_host:10.0.0.1,handshake:7301,notify:7401"
        f"___decode_addr_host:10.0.0.2,handshake:7302,notify:7402_{KEY}"
    )
    assert re.search(r"___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$", request_id)


def test_the_decode_leg_is_told_where_the_blocks_lie() -> None:
    """As answered, with addresses and transfer id beside it."""
    told = MoriIo().hand(meeting(PREFILL, DECODE), {"remote_engine_id": "e", "remote_block_ids": [1]})
    assert told == {
        "remote_engine_id": "e",
        "remote_block_ids": [1],
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": f"tx-{KEY}",
        "remote_host": "10.0.0.1",
        "remote_handshake_port": 7301,
        "remote_notify_port": 7401,
    }
    with pytest.raises(UnfitError):
        MoriIo().hand(meeting(PREFILL, DECODE), {"remote_block_ids": [1]})


def test_pods_without_addresses_pair_with_nobody() -> None:
    """Neither way."""
    assert MoriIo().may_prefill(PREFILL)
    assert not MoriIo().may_prefill(PodFacts())
    assert not MoriIo().may_decode(PodFacts(side_channel="a:1"))
