"""One request on its way up: who is asked next, what it says in the end, and how much a tenant may throw away."""

from __future__ import annotations

from gateway.cascades.cascades import View, cheaper_above, stays
from gateway.cascades.constraints import Share, Shares


def test_a_share_is_never_exceeded() -> None:
    """However many would be thrown away: at no moment more than the policy's part of those judged."""
    share = Share(0.25)
    escalated = 0
    for judged in range(1, 400):
        is_escalated = share.may_escalate()
        share.take(is_escalated=is_escalated)
        escalated += is_escalated
        assert escalated <= 0.25 * judged + 1e-9
    assert escalated >= 0.2 * 399


def test_no_bound_binds_nobody() -> None:
    """A share of one is no bound."""
    share = Share(1.0)
    for _ in range(50):
        assert share.may_escalate()
        share.take(is_escalated=True)


def test_a_share_is_a_tenants_own() -> None:
    """What one throws away is not held against another."""
    shares = Shares()
    shares.of("a", "auto", 0.5).take(is_escalated=True)
    assert not shares.of("a", "auto", 0.5).may_escalate()
    assert shares.of("b", "auto", 1.0).may_escalate()


def test_a_warm_prefix_above_may_beat_a_cold_start_below() -> None:
    """Where it costs no more, all in all, and begins no later."""
    cold, warm = View(0, 1.0, 2.0, 0.0), View(1, 1.5, 0.5, 0.9)
    assert cheaper_above(cold, [warm], escalated_share=0.5) == 1
    assert cheaper_above(cold, [warm], escalated_share=0.1) == 0
    assert cheaper_above(cold, [View(1, 1.5, 3.0, 0.9)], escalated_share=0.5) == 0
    assert cheaper_above(cold, [View(1, None, None, 0.0)], escalated_share=0.5) == 0


def test_a_conversation_stays_where_it_is_warm() -> None:
    """Leaving loses the prefix; where it is lost already, price decides."""
    first = View(0, 1.0, 1.0, 0.0)
    assert stays(View(1, 9.0, 1.0, 0.8), first, escalated_share=0.1)
    assert not stays(View(1, 9.0, 1.0, 0.1), first, escalated_share=0.1)
    assert stays(View(1, 1.05, 1.0, 0.1), first, escalated_share=0.1)
    assert not stays(View(1, None, None, 0.0), first, escalated_share=0.1)
