"""Counting at one gateway: placed once, ended once, rejected as far as engines would have helped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.pipeline.record import Outcome
from gateway.scaling.demand import DemandMeter, fingerprint_of
from gateway.scaling.figures import MAX_RESIDENCIES, MAX_TIERS, TierFigures
from routing.blocks import Prompt
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.rejection import Reason
from routing.request import Request, Usage
from tests.gateway.samples import an_attempt
from tests.routing.engines import MODEL, add_pod, ask, place, router_of, texts_apart


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def metered(engines: int = 1) -> tuple[Router, DemandMeter, Clock]:
    router, clock = router_of(0), Clock()
    for number in range(engines):
        add_pod(router, f"http://p{number}")
    return router, DemandMeter(router, clock=clock), clock


def count(meter: DemandMeter, router: Router, request: Request, tenant: str = "acme", tier: str = "gold") -> Placement:
    placement = place(router, request, now_s=0.0)
    meter.placed(request, tenant, tier, placement)
    return placement


def ended(request: Request, *, usage: Usage | None = None, reason: Reason | None = None, **more: object) -> Outcome:
    return Outcome(
        id=request.id,
        model=request.model,
        tenant="acme",
        tier="gold",
        usage=usage,
        reason=reason,
        prompt=request.prompt,
        prompt_bytes=request.prompt.size,
        **more,  # type: ignore[arg-type]
    )


def gold(meter: DemandMeter) -> TierFigures:
    (figures,) = meter.take({}, {}).tiers
    assert (figures.model, figures.tier) == (MODEL, "gold")
    return figures


def test_a_request_counts_once_however_often_it_is_placed() -> None:
    """A retry is the same demand; its end gives back what runs."""
    router, meter, _ = metered()
    request = ask()
    for _ in range(3):
        count(meter, router, request)
    figures = gold(meter)
    assert (figures.requests, figures.running) == (1.0, 1.0)
    assert figures.prefill_tokens > 0
    assert figures.prefill_squares == figures.prefill_tokens**2
    meter.on_outcome(ended(request, usage=Usage(2_000, 100), slo_met=True))
    figures = gold(meter)
    assert (figures.requests, figures.running, figures.finished, figures.met) == (1.0, 0.0, 1.0, 1.0)
    assert (figures.answered, figures.context_tokens) == (1.0, 2_050.0)


def test_cached_tokens_are_no_demand() -> None:
    """A prompt that an engine holds costs no prefill."""
    router, meter, _ = metered()
    first = count(meter, router, ask())
    first.first_token(0.1)
    cold_tokens = gold(meter).prefill_tokens
    count(meter, router, replace(ask(), id="second"))
    assert gold(meter).prefill_tokens < 1.2 * cold_tokens


def test_answers_teach_how_long_the_next_will_be() -> None:
    """Within what the client allows."""
    router, meter, _ = metered()
    for number in range(6):
        request = replace(ask(), id=f"r{number}")
        count(meter, router, request)
        meter.on_outcome(ended(request, usage=Usage(100, 700)))
    assert meter.expected_output((MODEL, "gold"), ask()) == 700.0
    assert meter.expected_output((MODEL, "gold"), replace(ask(), max_tokens=50)) == 50.0


def test_only_rejections_that_engines_would_have_avoided_count() -> None:
    """A limit and a client's mistake do not."""
    _, meter, clock = metered()
    for number, reason in enumerate((Reason.OVERLOADED, Reason.RATE_LIMITED_TOKENS, Reason.BAD_REQUEST)):
        meter.on_outcome(ended(replace(ask(), id=f"r{number}"), reason=reason, slo_met=False))
    clock.now_s = 2.0
    (rejected,) = meter.take({}, {}).rejected
    assert (rejected.tenant, rejected.tier, rejected.age_s, rejected.is_without_pod) == ("acme", "gold", 2.0, False)
    assert meter.take({}, {}).rejected == []


def test_a_rejected_request_that_is_placed_later_is_served() -> None:
    """Here, or after a rejection by a peer."""
    router, meter, _ = metered()
    request = ask()
    meter.on_outcome(ended(request, reason=Reason.OVERLOADED))
    count(meter, router, replace(request, id="again"))
    assert meter.take({}, {}).served == [fingerprint_of("acme", MODEL, request.prompt)]
    meter.remember(fingerprint_of("acme", MODEL, request.prompt))
    count(meter, router, replace(request, id="third"))
    assert len(meter.take({}, {}).served) == 1


def test_the_admitted_work_of_a_tenant_decays() -> None:
    """It bounds for how much its rejections count."""
    router, meter, clock = metered()
    count(meter, router, ask())
    requests, prefill, _ = meter.take({}, {}, ["acme", "other"]).tenants["acme"]
    assert requests > 0
    assert prefill > 0
    clock.now_s = 300.0
    assert meter.take({}, {}, ["acme"]).tenants["acme"][0] < requests / 1_000


def test_invented_models_make_no_figures() -> None:
    """A name that no pod serves and no configuration names; configured ones do."""
    router, meter, _ = metered()
    router.fleet.configured_models = frozenset({"asleep"})
    for number in range(MAX_TIERS + 5):
        meter.on_outcome(Outcome(id=f"r{number}", model=f"m{number}", reason=Reason.NO_POD_READY))
    assert meter.take({}, {}).tiers == []
    meter.on_outcome(Outcome(id="r", model="asleep", reason=Reason.NO_POD_READY, prompt=Prompt((), (), 8)))
    (rejected,) = meter.take({}, {}).rejected
    assert (rejected.model, rejected.is_without_pod) == ("asleep", True)


def test_work_that_residency_bounds_is_counted_apart() -> None:
    """By the set of regions, and a bounded number of sets; other work is not."""
    router, meter, _ = metered()
    count(meter, router, ask())
    for number in range(2 * MAX_RESIDENCIES):
        bound = replace(ask(), id=f"r{number}", regions=frozenset({f"r{number % (MAX_RESIDENCIES + 3)}", "a"}))
        meter.placed(bound, "acme", "gold", place(router, replace(bound, regions=None), now_s=0.0))
    figures = gold(meter)
    assert len(figures.resident) == MAX_RESIDENCIES
    assert figures.resident["a,r0"][0] == 2.0
    assert sum(sums[0] for sums in figures.resident.values()) < figures.requests


def test_a_decode_step_is_learned_without_the_prefill_beside_it() -> None:
    """Streams of an engine that prefills for others meanwhile: its step of 20 ms, not their pace."""
    router, meter, clock = metered()
    ledger, slot, tokens = router.ledger, 0, 101
    for number in range(20):
        request = ask(texts_apart(2 * number))
        placement = count(meter, router, request)
        placement.first_token(clock.now_s)
        other = place(router, ask(texts_apart(2 * number + 1)), now_s=clock.now_s)
        stalled_s = ledger.queued_s(lambda column: column[slot : slot + 1], clock.now_s)[0]
        assert stalled_s > 0
        other.first_token(clock.now_s)
        other.release(clock.now_s)
        decode_s = 0.02 * (tokens - 1) + stalled_s
        clock.now_s += decode_s
        placement.release(clock.now_s)
        attempt = an_attempt(engine=placement.engine.name)
        meter.on_outcome(ended(request, usage=Usage(2_000, tokens), attempts=(attempt,), decode_s=decode_s))
    base_s, each_s = router.decode_pace.line(slot)
    assert router.decode_pace.is_known
    assert base_s + each_s == pytest.approx(0.02, rel=0.02)
