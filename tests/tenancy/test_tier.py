"""Where no policy names tiers, nothing is promised."""

from math import inf

from tenancy.tier import USUAL, Overload


def test_the_usual_tier_promises_nothing() -> None:
    """So nothing can be refused for a promise's sake, and nobody goes before anybody."""
    assert (USUAL.ttft_s, USUAL.tpot_s, USUAL.reserve, USUAL.priority) == (inf, inf, 0.0, 0)
    assert (USUAL.on_overload, USUAL.is_batch) == (Overload.REJECT, False)
