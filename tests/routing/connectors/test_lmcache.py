"""LMCache, pooled and PD: which of the two it is, and whom a producer is told to send to."""

import pytest

from routing.connectors.lmcache import LMCACHE_POOL, LmCachePd
from routing.connectors.shape import InvalidTransferParams
from routing.facts import PodFacts
from tests.routing.connectors.meetings import meeting

RECEIVER = PodFacts(kv_role="kv_consumer", side_channel="10.0.0.2:7100", bootstrap="10.0.0.2:7200")
PRODUCER = PodFacts(kv_role="kv_producer")


def test_pods_are_pooled_or_split_by_their_roles() -> None:
    """Never both."""
    for facts in (PRODUCER, RECEIVER):
        assert LMCACHE_POOL.group(facts) is None
        assert LmCachePd().group(facts) is not None
    assert LMCACHE_POOL.group(PodFacts(kv_role="kv_both")) is not None
    assert LmCachePd().group(PodFacts()) is None


def test_the_producer_is_sent_the_destination() -> None:
    """The decode pod's receiver; a pod without one decodes for nobody."""
    requested = LmCachePd().ask(meeting(PRODUCER, RECEIVER))
    assert requested == {
        "ret_first_tok": True,
        "disagg_spec": {
            "req_id": "r-1",
            "receiver_host": "10.0.0.2",
            "receiver_init_port": 7100,
            "receiver_alloc_port": 7200,
        },
    }
    assert LmCachePd().may_decode(RECEIVER)
    assert not LmCachePd().may_decode(PodFacts(kv_role="kv_consumer"))
    with pytest.raises(InvalidTransferParams):
        LmCachePd().ask(meeting(PRODUCER, PodFacts()))


def test_the_answer_must_have_a_first_token() -> None:
    """The decode leg is told nothing."""
    assert LmCachePd().hand(meeting(), {"first_tok": 7}) is None
    with pytest.raises(InvalidTransferParams):
        LmCachePd().hand(meeting(), None)
