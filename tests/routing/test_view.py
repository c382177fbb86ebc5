"""What may serve a request, as one value."""

from routing.ballot import foreseen
from routing.view import predicted_prefill
from tests.routing.test_pairing import busy, long, split_fleet


def test_pairs_stand_behind_single_engines() -> None:
    """Each by its decode engine, with the prefill of the other."""
    router = split_fleet(1, 2)
    busy(router, "http://d1", 60)
    view = router._look(long(), frozenset(), 0.0)
    assert view.pairs is not None
    assert view.pairs.first == 2
    assert len(view.candidates.engines) == len(view.scored.totals) == 4
    assert foreseen(view.candidates, view.scored, 0).prefill is None
    pair = foreseen(view.candidates, view.scored, 2)
    assert pair.prefill is not None
    assert pair.prefill.pod == "http://p0"
    assert pair.engine is view.candidates.engines[view.pairs.singles[0]]


def test_a_prefill_leg_is_foretold_by_itself() -> None:
    """Without the hand-over, which is learned from apart."""
    view = split_fleet(1, 1)._look(long(), frozenset(), 0.0)
    assert view.pairs is not None
    match = view.pairs.matches[0]
    leg = predicted_prefill(view.pairs, match)
    assert leg.is_alone
    assert foreseen(view.candidates, view.scored, 1).ttft_s > leg.ttft_s + match.transfer.seconds
