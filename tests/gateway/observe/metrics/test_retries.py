"""What is shown of second attempts and of silences."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from gateway.observe.metrics.retries import RetriesExposition
from routing.retries import Budget, RetryTerms, Try
from routing.stall_detection import Bounds, Late, Lateness


def test_every_kind_has_its_count() -> None:
    """Also those of which there was none."""
    budget, lateness = Budget(RetryTerms(saved=2)), Lateness(Bounds(least_s=1.0, first_s=0.1), 60.0)
    assert [budget.take(what) for what in (Try.CUT, Try.MOVE, Try.AGAIN)] == [True, True, False]
    vigil = lateness.vigil("e", "m", 0.1, 0.0)
    while vigil.silent(now_s := vigil._looked_s + 0.2) is None:
        assert now_s < 100
    registry = CollectorRegistry()
    registry.register(RetriesExposition(budget, lateness.found))
    page = generate_latest(registry).decode()
    for line in (
        'hearth_second_attempts_total{why="cut"} 1.0',
        'hearth_second_attempts_total{why="again"} 0.0',
        'hearth_second_attempts_refused_total{why="again"} 1.0',
        "hearth_retry_budget 0.0",
        'hearth_stalls_total{what="engine"} 1.0',
        'hearth_stalls_total{what="stream"} 0.0',
    ):
        assert line in page
    assert lateness.found == {Late.ENGINE: 1}
