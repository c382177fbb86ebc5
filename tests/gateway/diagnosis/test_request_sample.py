"""Records of requests become times and views of pods: a bounded sample, scaled up."""

import pytest

from diagnosis.request_times import Phase, RequestClass
from gateway.diagnosis.request_sample import SAMPLES_PER_STEP, STEPS, RequestSample
from routing.eligible import PairingFallback
from routing.fleet import Fleet
from routing.pods import Pod, PodState
from routing.request import Usage
from tests.gateway.samples import AT_S, an_attempt, an_outcome

POD = "http://a:1"


def a_sample(queue_s: float | None = 0.05) -> RequestSample:
    fleet = Fleet()
    fleet.put(Pod(POD, PodState.READY, models=frozenset(("tiny",))))
    return RequestSample(fleet, AT_S, lambda _: queue_s)


def test_the_time_of_a_request_is_split() -> None:
    """Gateway, engine queue, prefill and decode, by model, pool and class."""
    sample = a_sample()
    sample.on_outcome(an_outcome(attempts=(an_attempt(start_s=0.1, role="either"),)))
    sample.step(AT_S + 5)
    ((key, times),) = sample.times().items()
    assert (key.model, key.pool, key.request_class) == ("tiny", "tiny", RequestClass.PLAIN)
    seconds = {phase: held.total for phase, held in times.phases.items()}
    assert seconds[Phase.GATEWAY] == pytest.approx(0.1)
    assert seconds[Phase.QUEUE] == pytest.approx(0.05)
    assert seconds[Phase.PREFILL] == pytest.approx(0.1)
    assert seconds[Phase.DECODE] == pytest.approx(1.0)
    assert times.cold_tokens is not None
    assert times.cold_tokens.total == 4


def test_a_pod_is_seen_through_its_requests() -> None:
    """Errors, cached tokens, and the time per token of constrained requests apart."""
    sample = a_sample()
    sample.on_outcome(an_outcome(usage=Usage(100, 11, 96)))
    sample.on_outcome(an_outcome(usage=Usage(100, 11, 96), decode_s=3.0, is_constrained=True))
    sample.on_outcome(
        an_outcome(
            status=502, reason=None, usage=None, attempts=(an_attempt(result="connection_reset", actual_ttft_s=None),)
        )
    )
    sample.step(AT_S + 5)
    view = sample.view_of(POD)
    assert view is not None
    assert (view.requests, view.errors, view.constrained) == (3, 1, 1)
    assert (view.predicted_cached_tokens, view.actual_cached_tokens) == (3 * 64, 3 * 96)
    assert view.token_gap is not None
    assert view.token_gap.count == 2
    assert view.constrained_token_gap is not None
    assert view.constrained_token_gap.mean == pytest.approx(0.3)


def test_salts_are_counted_by_trust_domain() -> None:
    """Over all steps of the window; one that is seen again is not another."""
    sample = a_sample()
    for domains in ([None, "tenant:a", "tenant:b"], ["tenant:b", "domain:c"]):
        for domain in domains:
            sample.on_outcome(an_outcome(trust_domain=domain))
        sample.step(AT_S + 5)
    view = sample.view_of(POD)
    assert view is not None
    assert (view.requests, view.salted, view.salts) == (5, 4, 3)


def test_pairs_are_counted_at_both_pods() -> None:
    """Lost ones as well; how long KV took stands at the pod that had it, where it came."""
    sample = a_sample()
    pair = {"prefill_engine": "http://p:1#0", "connector": "NixlConnector", "prefill_s": 0.2}
    sample.on_outcome(an_outcome(attempts=(an_attempt(**pair, actual_transfer_s=0.3),)))
    lost = an_attempt(
        **pair, result="kv_transfer_timeout", actual_transfer_s=9.0, fallback_reason=PairingFallback.TRANSFER_STALLED
    )
    sample.on_outcome(an_outcome(attempts=(lost, an_attempt())))
    failed_prefill = an_attempt(**pair, result="upstream_busy", fallback_reason=PairingFallback.PREFILL_FAILED)
    sample.on_outcome(an_outcome(attempts=(failed_prefill, an_attempt())))
    sample.step(AT_S + 5)
    decode, prefill = sample.view_of(POD), sample.view_of("http://p:1")
    assert decode is not None
    assert prefill is not None
    assert (decode.requests, decode.pairs, decode.lost_pairs, decode.handover) == (5, 3, 1, None)
    assert (prefill.requests, prefill.pairs, prefill.lost_pairs) == (0, 3, 1)
    assert prefill.handover is not None
    assert prefill.handover.count == 1
    assert prefill.handover.total == pytest.approx(0.3)


def test_first_tokens_are_placed_at_the_time_when_they_came() -> None:
    """Those of one pause come together, also where their requests end at other times; those before the window do not
    count.
    """
    sample = a_sample()
    attempts = (an_attempt(start_s=0.0, actual_ttft_s=4.0),)
    for ended_s, duration_s in ((11.0, 4.5), (16.0, 9.5), (21.0, 14.5), (8.0, 30.0)):
        sample.on_outcome(an_outcome(at_s=AT_S + ended_s, duration_s=duration_s, attempts=attempts))
    sample.step(AT_S + 22)
    view = sample.view_of(POD)
    assert view is not None
    assert view.first_token_course == (((AT_S + 10.5) // 5 * 5, 4.0),)


def test_requests_beyond_the_sample_are_counted_only() -> None:
    """Counts are scaled up; the window is bounded."""
    sample = a_sample()
    for _ in range(2 * SAMPLES_PER_STEP):
        sample.on_outcome(an_outcome())
    sample.step(AT_S + 5)
    view = sample.view_of(POD)
    assert view is not None
    assert view.requests == 2 * SAMPLES_PER_STEP
    assert view.first_token is not None
    assert view.first_token.count == SAMPLES_PER_STEP
    for step in range(STEPS):
        sample.step(AT_S + 10 + 5 * step)
    view = sample.view_of(POD)
    assert view is not None
    assert view.requests == 0
    assert sample.times() == {}
