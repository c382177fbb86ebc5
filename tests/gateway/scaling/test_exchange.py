"""Figures of several gateways as one: rates from sums, folded rejections, and what is missing."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from gateway.scaling.exchange import FRESH_S, MISSING_S, WINDOW_S, FigureBook
from gateway.scaling.figures import (
    MAX_RESIDENCIES,
    FleetFigures,
    GatewayFigures,
    PoolFigure,
    RejectedFigures,
    TierFigures,
    decode,
    encode,
)
from supply.load import OfferedWork

PLENTY = {"acme": OfferedWork(1e9, 1e9, 1e9)}


def figures(requests: float, **more: Any) -> GatewayFigures:
    return GatewayFigures([TierFigures("m", "gold", requests=requests, prefill_tokens=100 * requests, **more)])


def rejected(fingerprint: int, *, age_s: float = 0.0, is_without_pod: bool = False) -> RejectedFigures:
    return RejectedFigures(fingerprint, "acme", "gold", "m", 1_000.0, 100.0, age_s, is_without_pod)


def test_messages_survive_their_encoding() -> None:
    """Both kinds; bytes that are neither are ignored."""
    message = GatewayFigures(
        [TierFigures("m", "gold", 3.0)], {"m": 2}, [rejected(7)], [7], followed=[("m", "p", "either")]
    )
    assert decode(encode(message)) == message
    decision = FleetFigures(4, [PoolFigure("m", "p", "either", 2, 3, 1, "load", True, {"gold": 1.5})], {"n": "why"})
    assert decode(encode(decision)) == decision
    assert decode(b"\xff\x00") is None


def test_rates_are_differences_of_all_gateways() -> None:
    """The first figures of a gateway are its base: what it served before is not a burst."""
    book = FigureBook()
    for second in range(11):
        book.take(1, figures(1_000 + 2 * second), float(second))
        book.take(2, figures(5 * second), float(second))
        book.expire(float(second))
    rates = book.rates()["m", "gold"]
    assert rates.requests == 10 * 2 + 10 * 5
    assert rates.prefill_tokens == 100 * rates.requests
    assert book.window_s(10.0) == 10.0
    assert book.arrivals(("m", "gold"))[-1] == 7.0


def test_a_gateway_that_restarted_takes_nothing_away() -> None:
    """Its sums start at zero again."""
    book = FigureBook()
    for at_s, count in ((0.0, 50.0), (1.0, 60.0), (2.0, 3.0), (3.0, 4.0)):
        book.take(1, figures(count), at_s)
    assert book.rates()["m", "gold"].requests == 10 + 1


def test_old_seconds_leave_the_window() -> None:
    """And the stocks of gateways that are gone leave at once."""
    book = FigureBook()
    book.take(1, figures(0), 0.0)
    book.take(1, figures(100, running=4.0, queued_requests=2.0), 1.0)
    assert book.queued()["m", "gold"].queued_requests == 2.0
    book.expire(1.0 + WINDOW_S + 1)
    assert book.rates() == {}
    assert book.queued() == {}


def test_a_gateway_that_falls_silent_is_missing_and_one_that_leaves_is_not() -> None:
    """For some minutes: requests may go there that are not known here."""
    book = FigureBook()
    for gateway in (1, 2, 3):
        book.take(gateway, figures(0), 0.0)
    leaving = figures(0)
    leaving.is_leaving = True
    book.take(3, leaving, 1.0)
    assert book.oldest() == 1
    book.take(1, figures(0), FRESH_S + 2)
    book.expire(FRESH_S + 2)
    assert book.missing(1, [2, 3]) == {2}
    assert book.missing(1, []) == {2}
    book.take(2, figures(0), FRESH_S + 3)
    assert book.missing(1, [2]) == frozenset()
    book.expire(10 * FRESH_S)
    book.take(1, figures(0), 10 * FRESH_S)
    assert book.missing(1, []) == {2}
    book.take(1, figures(0), 10 * FRESH_S + MISSING_S)
    book.expire(10 * FRESH_S + MISSING_S)
    assert book.missing(1, []) == frozenset()


def test_a_gateway_in_the_place_of_a_missing_one_ends_the_wait() -> None:
    """As a worker that its supervisor has started again."""
    book = FigureBook()
    book.take(1, figures(0), 0.0)
    book.take(2, figures(0), 0.0)
    book.take(1, figures(0), 2 * FRESH_S)
    book.expire(2 * FRESH_S)
    assert book.missing(1, []) == {2}
    book.take(3, figures(0), 2 * FRESH_S)
    assert book.missing(1, []) == frozenset()


def test_the_gateway_that_began_first_is_the_oldest() -> None:
    """A new one has no memory to decide with, whatever its id."""
    book = FigureBook()
    assert book.oldest() is None
    for gateway, started_s in ((1, 300.0), (2, 100.0), (3, 100.0)):
        message = figures(0)
        message.started_s = started_s
        book.take(gateway, message, 0.0)
    assert book.oldest() == 2


def test_a_peer_without_figures_is_missing() -> None:
    """One of an earlier version, or whose configuration has no supply."""
    book = FigureBook()
    book.take(1, figures(0), 0.0)
    assert book.missing(1, [9]) == {9}


def test_retries_of_one_request_count_once_wherever_they_arrive() -> None:
    """And not at all once it was placed."""
    book = FigureBook()
    book.take(1, GatewayFigures(rejected=[rejected(7), rejected(7)]), 10.0)
    book.take(2, GatewayFigures(rejected=[rejected(7), rejected(8)]), 10.5)
    work = book.rejected("m", 11.0, PLENTY)["gold"]
    assert work.requests == pytest.approx(2 / book.window_s(11.0))
    book.take(2, GatewayFigures(served=[8]), 11.0)
    assert book.rejected("m", 11.0, PLENTY)["gold"].requests == pytest.approx(1 / book.window_s(11.0))
    assert book.rejecting_tenants() == {"acme"}


def test_a_tenant_without_allowance_buys_nothing() -> None:
    """A loop of rejected requests raises no figure."""
    book = FigureBook()
    book.take(1, GatewayFigures(rejected=[rejected(each) for each in range(200)]), 10.0)
    assert book.rejected("m", 11.0, {"acme": OfferedWork()}).get("gold", OfferedWork()).requests == 0.0
    assert book.rejected("m", 11.0, {"acme": OfferedWork(1.0, 1e9, 1e9)})["gold"].requests == pytest.approx(1.0)


def test_requests_rejected_for_lack_of_a_pod_count_as_held_for_a_while() -> None:
    """Their clients return; those that were served do not count."""
    book = FigureBook()
    book.take(1, GatewayFigures(held={"m": 2}, rejected=[rejected(7, is_without_pod=True), rejected(8)]), 10.0)
    assert book.held(11.0) == {"m": 3}
    assert book.held(11.0, {"m"}) == {"m": 2}
    book.take(1, GatewayFigures(served=[7]), 12.0)
    assert book.held(12.0) == {}


def test_verdicts_are_taken_once() -> None:
    """For the history."""
    book = FigureBook()
    book.take(1, figures(0), 0.0)
    book.take(1, figures(4, finished=4.0, met=3.0), 1.0)
    assert book.take_verdicts() == {"m": (4.0, 3.0)}
    assert book.take_verdicts() == {}


def test_an_idle_tier_is_soon_not_running() -> None:
    """A pool would otherwise look busy for minutes."""
    book = FigureBook()
    book.take(1, figures(0, running=1.0), 0.0)
    for second in range(20):
        book.take(1, figures(0, running=1.0), float(second))
        book.expire(float(second))
    assert book.running["m", "gold"] > 0.8
    for second in range(20, 60):
        book.take(1, figures(0), float(second))
        book.expire(float(second))
    assert book.running == {}


@pytest.mark.parametrize("value", [nan, inf, -1.0, 1e300])
def test_figures_that_cannot_be_are_not_taken(value: float) -> None:
    """Of a broken peer: it counts as missing, so that nothing is stated from them."""
    rejected = RejectedFigures(1, "acme", "gold", "m", value, 1.0, 0.0, is_without_pod=False)
    for broken in (
        GatewayFigures([TierFigures("m", "gold", prefill_tokens=value)]),
        GatewayFigures(rejected=[rejected]),
        GatewayFigures(tenants={"acme": (1.0, value, 1.0)}),
        GatewayFigures(started_s=value),
    ):
        assert decode(encode(broken)) is None


def test_resident_work_is_a_difference_too() -> None:
    """Of all gateways; one that reports too many sets of regions, or no numbers, is not read."""
    book = FigureBook()
    for second in range(5):
        for replica in (1, 2):
            tier = TierFigures("m", "gold", requests=2.0 * second, resident={"eu": (1.0 * second, 100.0 * second, 0.0)})
            book.take(replica, GatewayFigures([tier]), float(second))
    rates = book.rates()["m", "gold"]
    assert rates.resident == {"eu": (8.0, 800.0, 0.0)}
    assert rates.requests == 16.0
    many = {str(number): (0.0, 0.0, 0.0) for number in range(MAX_RESIDENCIES + 1)}
    assert decode(encode(GatewayFigures([TierFigures("m", "gold", resident=many)]))) is None
    assert decode(encode(GatewayFigures([TierFigures("m", "gold", resident={"eu": (nan, 0.0, 0.0)})]))) is None
