"""One request on its way up: who is asked next, what it says in the end, and how much a tenant may throw away."""

from __future__ import annotations

from gateway.cascades.cascades import ModelEstimate, cheaper_larger_model, should_stay
from gateway.cascades.constraints import EscalationLimiter, EscalationLimiters


def test_a_share_is_never_exceeded() -> None:
    """However many would be thrown away: at no moment more than the policy's part of those judged."""
    share = EscalationLimiter(0.25)
    escalated = 0
    for judged in range(1, 400):
        is_escalated = share.may_escalate()
        share.record(is_escalated=is_escalated)
        escalated += is_escalated
        assert escalated <= 0.25 * judged + 1e-9
    assert escalated >= 0.2 * 399


def test_no_bound_limits_no_client() -> None:
    """A share of one is no bound."""
    share = EscalationLimiter(1.0)
    for _ in range(50):
        assert share.may_escalate()
        share.record(is_escalated=True)


def test_a_share_is_a_tenants_own() -> None:
    """What one throws away is not held against another."""
    shares = EscalationLimiters()
    shares.limiter("a", "auto", 0.5).record(is_escalated=True)
    assert not shares.limiter("a", "auto", 0.5).may_escalate()
    assert shares.limiter("b", "auto", 1.0).may_escalate()


def test_a_warm_prefix_above_may_beat_a_cold_start_below() -> None:
    """Where it costs no more, all in all, and begins no later."""
    cold, warm = ModelEstimate(0, 1.0, 2.0, 0.0), ModelEstimate(1, 1.5, 0.5, 0.9)
    assert cheaper_larger_model(cold, [warm], escalated_share=0.5) == 1
    assert cheaper_larger_model(cold, [warm], escalated_share=0.1) == 0
    assert cheaper_larger_model(cold, [ModelEstimate(1, 1.5, 3.0, 0.9)], escalated_share=0.5) == 0
    assert cheaper_larger_model(cold, [ModelEstimate(1, None, None, 0.0)], escalated_share=0.5) == 0


def test_a_conversation_stays_where_it_is_warm() -> None:
    """Leaving loses the prefix; where it is lost already, price decides."""
    first = ModelEstimate(0, 1.0, 1.0, 0.0)
    assert should_stay(ModelEstimate(1, 9.0, 1.0, 0.8), first, escalated_share=0.1)
    assert not should_stay(ModelEstimate(1, 9.0, 1.0, 0.1), first, escalated_share=0.1)
    assert should_stay(ModelEstimate(1, 1.05, 1.0, 0.1), first, escalated_share=0.1)
    assert not should_stay(ModelEstimate(1, None, None, 0.0), first, escalated_share=0.1)
