"""Links between pods: how near, how fast, and what is learned of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.facts import PodFacts
from routing.pairing.links import MIN_TIMEOUT_S, Link, TransferCosts, TransfersUnderWay, bytes_per_s, nearest_link


@pytest.mark.parametrize(
    ("other", "link"),
    [
        (PodFacts(host="a", rack="1", zone="z"), Link.HOST),
        (PodFacts(host="b", rack="1", zone="z"), Link.RACK),
        (PodFacts(host="b", rack="2", zone="z"), Link.ZONE),
        (PodFacts(host="b", rack="1", zone="y"), Link.FAR),
        (PodFacts(), Link.FAR),
    ],
)
def test_pods_are_as_near_as_what_they_have_in_common(other: PodFacts, link: Link) -> None:
    """A rack's name counts within its zone; what nobody has said is far."""
    assert nearest_link(PodFacts(host="a", rack="1", zone="z"), other) is link


def test_pods_that_report_their_hardware_are_believed() -> None:
    """NVLink within a host, NICs beyond; the slower end counts."""
    fast, slow = PodFacts(nvlink_gb_s=900, nic_gbit_s=400), PodFacts(nvlink_gb_s=600, nic_gbit_s=100)
    assert bytes_per_s(Link.HOST, fast, slow) == pytest.approx(0.6 * 600e9)
    assert bytes_per_s(Link.ZONE, fast, slow) == pytest.approx(0.6 * 100e9 / 8)
    assert bytes_per_s(Link.ZONE, fast, PodFacts()) == 10e9


def test_transfers_of_one_kind_are_learned_from() -> None:
    """Of that link and connector only."""
    transfers = TransferCosts()
    for _ in range(200):
        transfers.observe(Link.ZONE, "N", 0.1, 0.5)
    assert transfers.seconds(Link.ZONE, "N", 0.1) == pytest.approx(0.5, rel=0.1)
    assert transfers.seconds(Link.HOST, "N", 0.1) == transfers.seconds(Link.ZONE, "M", 0.1) == 0.1


@given(st.lists(st.floats(0.0, 100.0), max_size=50), st.floats(0.0, 60.0))
def test_a_transfer_is_never_given_up_too_soon(took_s: list[float], again_s: float) -> None:
    """Not before doing it again would have paid, nor before a first hand-shake; but in the end it is."""
    transfers = TransferCosts()
    for seconds in took_s:
        transfers.observe(Link.FAR, "N", 0.1, seconds)
    bound_s = transfers.timeout_s(Link.FAR, "N", 0.1, again_s)
    assert max(MIN_TIMEOUT_S, again_s) <= bound_s < 1e5


def test_distrust_fades_and_ends_with_the_next_that_comes() -> None:
    """Both ends are held to have been at fault, for as long as was waited."""
    transfers = TransferCosts()
    transfers.penalise((1, 2), 10.0, 100.0)
    assert transfers.penalty_s(1, 100.0) == transfers.penalty_s(2, 100.0) == 10.0
    assert transfers.penalty_s(1, 130.0) == pytest.approx(5.0)
    assert transfers.penalty_s(3, 100.0) == 0.0
    transfers.clear_penalty((1, 3))
    assert transfers.penalty_s(1, 130.0) == 0.0
    assert transfers.has_penalties


def test_a_transfer_waits_for_the_busier_card() -> None:
    """Beyond the time in which its KV is computed; out and in are apart, and nothing stays of what has ended."""
    under_way = TransfersUnderWay()
    assert not under_way
    under_way.begin(0, 5, 2.0)
    under_way.begin(0, 6, 1.0)
    assert under_way.wait_s(0, 7, 0.5) == 2.5
    assert under_way.wait_s(1, 5, 0.5) == 1.5
    assert under_way.wait_s(5, 0, 0.0) == 0.0
    assert under_way.wait_s(0, 5, 9.0) == 0.0
    under_way.end(0, 6, 1.0)
    assert under_way.wait_s(0, 7, 0.0) == 2.0
    under_way.end(0, 5, 2.0)
    assert not under_way
