"""The prefill engine of a pair: told its moments in any order, it gives back what it was charged, once."""

from hypothesis import given
from hypothesis import strategies as st

from routing.request import Usage
from tests.routing.pairing.test_pairing import busy, long, place, split_fleet

MOMENTS = st.lists(st.sampled_from(["done", "handed", "stalled", "release", "first", "end"]), max_size=8)


@given(MOMENTS, st.booleans())
def test_in_whatever_order_it_is_reported(moments: list[str], stream: bool) -> None:
    """Nothing stays charged when the placement has ended."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    placement = place(router, long(stream=stream))
    side = placement.prefill
    assert side is not None
    tell = {
        "done": lambda at: side.prefill_done(Usage(16_000, 1, 100), at),
        "handed": side.transfer_done,
        "stalled": side.transfer_stalled,
        "release": side.release,
        "first": placement.first_token,
        "end": placement.release,
    }
    for at, moment in enumerate([*moments, "end"]):
        tell[moment](1.0 + at)
    assert router.ledger.running == [0, 60]
    assert router.ledger.prefill_tokens == [0.0, 0.0]
    assert router.ledger.kv_tokens == [0.0, 100]
    assert router.pairing.transfers.unseen(side.engine.name) == 0


def test_what_the_engine_held_corrects_its_cached_tokens_alone() -> None:
    """The decode engine's own count says nothing of its cache."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    placement = place(router, long())
    side = placement.prefill
    assert side is not None
    side.prefill_done(Usage(16_000, 1, 0), 1.4)
    placement.first_token(1.5)
    placement.settle(Usage(16_000, 20, 16_000), 2.0)
    placement.release(2.0)
    assert side.cached_tokens == 0
    assert side.took_s == 1.4
    assert place(router, long(), now_s=3.0).predicted.cached_tokens > 15_000


def test_an_answer_in_one_piece_lets_its_prefill_engine_go_at_once() -> None:
    """As load: nobody will see the moment at which its KV has moved. A drained pod waits for the whole answer."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    placement = place(router, long(stream=False))
    side = placement.prefill
    assert side is not None
    side.prefill_done(None, 1.4)
    assert router.ledger.running[side.engine.slot] == 0
    assert router.pairing.transfers.unseen(side.engine.name) == 1
    placement.release(3.0)
    assert router.pairing.transfers.unseen(side.engine.name) == 0
