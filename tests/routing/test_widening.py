"""Pairs in the columns of all candidates: one entry per candidate, and terms that add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from tests.routing.test_candidates import OF_SOME, ONE_NUMBER
from tests.routing.test_pairing import busy, long, split_fleet

COUNTS = st.integers(1, 5)


@given(COUNTS, COUNTS, st.integers(0, 200))
def test_columns_and_terms_are_as_long_as_there_are_candidates(prefill: int, decode: int, running: int) -> None:
    """Whatever the fleet; and every total is the sum of its terms."""
    router = split_fleet(prefill, decode)
    busy(router, f"http://d{prefill}", running)
    view = router._look(long(), frozenset(), 0.0)
    seen, scored = view.candidates, view.scored
    assert len(seen.engines) == 2 * decode
    for field in fields(seen):
        if field.name not in ONE_NUMBER | OF_SOME:
            assert len(getattr(seen, field.name)) == 2 * decode, field.name
    assert len(seen.prefillers) == len(seen.burden_s) == 2 * decode
    for at, total in enumerate(scored.totals):
        assert total == pytest.approx(sum(term[at] for term in scored.terms), abs=1e-9)


def test_what_a_pair_puts_on_its_decode_engine_is_no_prefill() -> None:
    """Those who decode there bear nothing of it."""
    view = split_fleet(1, 1)._look(long(), frozenset(), 0.0)
    single, pair = view.candidates.burden_s
    assert single == view.candidates.own_s[0] > 1.0
    assert pair == 0.0
