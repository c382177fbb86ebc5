"""Totals by tenant, tier and pod: counts of all and of late, changes since a version, and their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.observe.operators import outcome_totals
from gateway.observe.operators.outcome_totals import (
    PERIOD_S,
    POD_COLUMNS,
    TENANT_COLUMNS,
    TIER_COLUMNS,
    OutcomeTotals,
    RecentTotals,
)
from gateway.pipeline.rejections import status_of
from routing.rejection import Reason
from routing.request import Usage
from tests.gateway.samples import a_request, an_attempt, an_outcome, count

NOW = 1_000 * PERIOD_S


def totals_of(*outcomes: dict[str, Any], cost: float = 0.5) -> OutcomeTotals:
    totals = OutcomeTotals(lambda _: cost)
    for changes in outcomes:
        count(totals, an_outcome(**{"at_s": NOW, **changes}))
    return totals


def named(columns: tuple[str, ...], counts: Any) -> dict[str, float]:
    return dict(zip(columns, counts, strict=True))


def test_a_request_is_counted_for_its_tenant_tier_and_pod() -> None:
    """Each with what concerns it; seconds add up to where TTFT went."""
    totals = totals_of({"tier": "gold", "slo_met": True, "queue_wait_s": 0.1, "usage": Usage(100, 11, 96)})
    tenant = named(TENANT_COLUMNS, totals.tenants["legal"].total)
    assert tenant == {
        "requests": 1,
        "rejected": 0,
        "failed": 0,
        "slo_requests": 1,
        "slo_met": 1,
        "input_tokens": 100,
        "cached_input_tokens": 96,
        "output_tokens": 11,
        "cost": 0.5,
        "ttft_count": 1,
        "ttft_s": 0.25,
    }
    tier = named(TIER_COLUMNS, totals.tiers["gold", "tiny"].total)
    assert tier == {**tenant, "queue_wait_s": 0.1, "engine_ttft_s": 0.15, "predicted_ttft_s": 0.1}
    assert named(POD_COLUMNS, totals.pods["http://a:1"].total) == {
        "attempts": 1,
        "failed_attempts": 0,
        "ttft_count": 1,
        "ttft_s": 0.15,
        "predicted_ttft_s": 0.1,
        "input_tokens": 100,
        "cached_input_tokens": 96,
        "predicted_cached_input_tokens": 64,
    }


def test_rejections_and_failures_are_counted_by_reason() -> None:
    """A failed attempt counts for its pod, a rejection for its tenant."""
    reason = Reason.OVERLOADED
    totals = totals_of(
        {"status": status_of(reason), "reason": reason, "usage": None, "attempts": (), "ttft_s": None},
        {"attempts": (an_attempt(result="connection_reset", actual_ttft_s=None), an_attempt(engine="http://b:1#2"))},
    )
    tenant = totals.tenants["legal"]
    assert (tenant.reasons, tenant.rejected_recently(1_000)) == ({"overloaded": 1}, {"overloaded": 1})
    failed = {url: named(POD_COLUMNS, pod.total)["failed_attempts"] for url, pod in totals.pods.items()}
    assert failed == {"http://a:1": 1, "http://b:1": 0}


@pytest.mark.parametrize(("periods", "recent"), [(0, 2), (1, 2), (2, 0), (9, 0)])
def test_what_was_counted_is_recent_for_two_periods(periods: int, recent: int) -> None:
    """And for ever in the totals."""
    totals = totals_of({}, {}).tenants["legal"]
    assert totals.recent(1_000 + periods)[0] == recent
    totals.advance(1_000 + periods)
    assert totals.recent(1_000 + periods)[0] == recent
    assert totals.total[0] == 2


def test_only_tenants_that_have_changed_are_returned() -> None:
    """The last change first."""
    totals = totals_of({"tenant": "a"}, {"tenant": "b"}, {"tenant": "c"}, {"tenant": "a"})
    assert [(name, each.version) for name, each in totals.changed_tenants(0)] == [("a", 4), ("c", 3), ("b", 2)]
    assert [name for name, _ in totals.changed_tenants(3)] == ["a"]
    assert list(totals.changed_tenants(4)) == []


def test_totals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants and tiers beyond a bound are added up, pods beyond it replace the oldest."""
    for name in ("MAX_TENANTS", "MAX_TIERS", "MAX_PODS"):
        monkeypatch.setattr(outcome_totals, name, 2)
    totals = totals_of(
        *(
            {
                "tenant": f"t{number}",
                "request": a_request(model=f"m{number}"),
                "attempts": (an_attempt(engine=f"http://{number}:1"),),
            }
            for number in range(5)
        )
    )
    assert {name: each.total[0] for name, each in totals.tenants.items()} == {"t0": 1, "t1": 1, "other": 3}
    assert {key: each.total[0] for key, each in totals.tiers.items()} == {
        ("default", "m0"): 1,
        ("default", "m1"): 1,
        ("other", "other"): 3,
    }
    assert [*totals.pods] == ["http://3:1", "http://4:1"]


def test_a_subject_without_requests_has_no_recent_rejections() -> None:
    """Nothing is kept before the first."""
    assert RecentTotals(3).rejected_recently(5) == {}


def test_models_that_clients_invent_take_no_tiers() -> None:
    """They share one entry of their tier, so that the bound is left to models that exist."""
    totals = OutcomeTotals(lambda _: 0.0, lambda model: model == "tiny")
    for number in range(2 * outcome_totals.MAX_TIERS):
        invented = a_request(model=f"invented-{number}")
        count(totals, an_outcome(at_s=NOW, request=invented, reason=Reason.UNKNOWN_MODEL, attempts=()))
    count(totals, an_outcome(at_s=NOW, tier="gold"))
    assert {key: counts.total[0] for key, counts in totals.tiers.items()} == {
        ("default", "other"): 2 * outcome_totals.MAX_TIERS,
        ("gold", "tiny"): 1,
    }
