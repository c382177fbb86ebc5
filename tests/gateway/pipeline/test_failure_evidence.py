"""One tenant's failures do not make a pod that answers others a broken one; a broken one is still found."""

from __future__ import annotations

import pytest

from gateway.fleet.breaker import CircuitBreaker
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.failure_evidence import ANSWERED_S, CAUSED_BY_REQUESTS, MAX_PODS, FailureEvidence
from routing.request import Api, Request
from simulator.clock import run_virtually
from tenancy.tenants import Caller, Tenant
from tests.gateway.pipeline.test_pipeline import MODEL, PROMPT, Play, PlayedCarrier, Stage

POD = "http://0"


@pytest.mark.parametrize("end", sorted(CAUSED_BY_REQUESTS))
def test_failures_of_one_tenant_are_no_evidence_of_a_pod_that_answers_others(end: AttemptStatus) -> None:
    """However many they are, and though some of its own requests are answered in between."""
    evidence = FailureEvidence()
    for second in range(20):
        evidence.answered(POD, "plain", float(second))
        assert not any(evidence.counts(POD, "odd", end, second + 0.1) for _ in range(5))
        evidence.answered(POD, "odd", second + 0.2)
        assert not any(evidence.counts(POD, "odd", end, second + 0.3) for _ in range(5))


def test_failures_of_two_tenants_count_all() -> None:
    """The first of the second tenant, and from then on those of both, until the pod answers again."""
    evidence, end = FailureEvidence(), AttemptStatus.UPSTREAM_5XX
    evidence.answered(POD, "plain", 0.0)
    evidence.answered(POD, "odd", 0.0)
    assert not evidence.counts(POD, "odd", end, 1.0)
    assert evidence.counts(POD, "plain", end, 1.0)
    assert evidence.counts(POD, "plain", end, 1.0)
    evidence.answered(POD, "plain", 2.0)
    assert not evidence.counts(POD, "odd", end, 2.0)


def test_without_answers_to_others_all_failures_count() -> None:
    """Where there is one tenant only, where the others' answers are old, and where the connection or engine is gone."""
    evidence, end = FailureEvidence(), AttemptStatus.UPSTREAM_5XX
    assert evidence.counts(POD, "odd", end, 0.0)
    evidence.answered(POD, "odd", 0.0)
    assert evidence.counts(POD, "odd", end, 0.1)
    evidence.answered(POD, "plain", 1.0)
    assert not evidence.counts(POD, "odd", end, 1.0)
    assert evidence.counts(POD, "odd", end, 1.1 + ANSWERED_S)
    assert evidence.counts(POD, "odd", AttemptStatus.CONNECTION_RESET, 1.0)
    assert evidence.counts(POD, "odd", AttemptStatus.ENGINE_HUNG, 1.0)


def test_memory_is_bounded() -> None:
    """Pods come and go."""
    evidence = FailureEvidence()
    for number in range(MAX_PODS + 5):
        evidence.answered(f"http://{number}", "plain", 0.0)
    assert len(evidence._pods) == MAX_PODS


def test_a_tenants_poison_opens_no_breaker_that_others_need() -> None:
    """Its requests fail wherever they are tried, many between two answers to the other tenant."""

    async def play() -> list[CircuitBreaker]:
        stage = Stage()
        breakers: dict[str, CircuitBreaker] = {}

        def take_end(pod: str, end: AttemptStatus) -> bool:
            before = breakers.get(pod, CircuitBreaker())
            breakers[pod] = before.on_success() if end is AttemptStatus.OK else before.on_failure(0.0)
            return before.is_failing

        stage.pipeline.report_health_to(take_end)

        async def send(tenant: str, end: AttemptStatus) -> None:
            request = Request("r", Api.CHAT, MODEL, PROMPT, stream=True, session=f"{tenant}/{len(stage.outcomes)}")
            await stage.pipeline.handle_request(request, PlayedCarrier([Play(end)]), caller=Caller(Tenant(tenant)))

        for _ in range(30):
            await send("plain", AttemptStatus.OK)
        for _ in range(5):
            await send("plain", AttemptStatus.OK)
            for _ in range(10):
                await send("odd", AttemptStatus.UPSTREAM_5XX)
        return [breaker for breaker in breakers.values() if breaker.open_count]

    assert run_virtually(play()) == []
