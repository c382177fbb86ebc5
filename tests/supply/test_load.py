"""Rejected work counts once, and only within its tenant's limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supply.load import OfferedWork, RejectedWork, count_rejected

EACH = OfferedWork(1.0, 1_000.0, 100.0)
PLENTY = OfferedWork(1e6, 1e9, 1e9)


def test_retries_of_one_request_count_once() -> None:
    """Fifty rejections with two fingerprints are two requests."""
    rejections = [RejectedWork("acme", "gold", at % 2, EACH) for at in range(50)]
    found = count_rejected(rejections, window_s=10.0, allowances={"acme": PLENTY})
    assert found == {"gold": OfferedWork(0.2, 200.0, 20.0)}


def test_a_request_that_was_admitted_later_does_not_count() -> None:
    """Its fingerprint is among those served."""
    rejections = [RejectedWork("acme", "gold", "a", EACH), RejectedWork("acme", "gold", "b", EACH)]
    found = count_rejected(rejections, window_s=1.0, allowances={"acme": PLENTY}, served=["a"])
    assert found["gold"].requests == 1.0


def test_a_looping_tenant_counts_for_no_more_than_its_limits_leave() -> None:
    """A thousand new prompts a second, with ten requests a second left, count as ten; another tenant counts in full."""
    rejections = [RejectedWork("loop", "silver", at, EACH) for at in range(1_000)]
    rejections += [RejectedWork("acme", "silver", f"a{at}", EACH) for at in range(3)]
    found = count_rejected(rejections, window_s=1.0, allowances={"loop": OfferedWork(10.0, 1e9, 1e9), "acme": PLENTY})
    assert abs(found["silver"].requests - 13.0) < 1e-9
    assert abs(found["silver"].prefill_tokens - 13_000.0) < 1e-6


def test_rejections_by_a_limit_and_of_unknown_tenants_do_not_count() -> None:
    """Neither buys an engine."""
    rejections = [RejectedWork("acme", "gold", 1, EACH, is_limit=True), RejectedWork("unknown", "gold", 2, EACH)]
    found = count_rejected(rejections, window_s=1.0, allowances={"acme": PLENTY})
    assert found.get("gold", OfferedWork()) == OfferedWork()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("gold", "silver")), st.integers(0, 20)), max_size=60),
    st.floats(0, 30),
)
def test_no_tenant_exceeds_its_allowance(rows: list[tuple[str, str, int]], allowed: float) -> None:
    """In any mixture, all tiers together."""
    rejections = [RejectedWork(tenant, tier, (tenant, mark), EACH) for tenant, tier, mark in rows]
    found = count_rejected(rejections, window_s=1.0, allowances=dict.fromkeys("abc", OfferedWork(allowed, 1e12, 1e12)))
    total = sum(work.requests for work in found.values())
    distinct = len({(tenant, mark) for tenant, _, mark in rows})
    assert total <= min(3 * allowed, distinct) + 1e-6
