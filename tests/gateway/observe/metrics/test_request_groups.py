"""Requests are added up in groups of those that are alike; what is counted does not depend on it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway.config.models import ModelEntry
from gateway.observe.metrics import requests
from gateway.observe.metrics.request_groups import AttemptSums, RequestGroup, is_alike
from gateway.observe.metrics.requests import RequestCounters
from gateway.observe.metrics.tiers import TierCollector, TierCounters
from gateway.observe.operators.outcome_totals import PERIOD_S, OutcomeTotals
from gateway.pipeline.attempt import ResumeBlocker
from gateway.pipeline.record import Outcome
from routing.fleet import Fleet
from routing.pods import Pod, PodState
from routing.rejection import Reason
from routing.request import Usage
from tests.gateway.samples import a_request, an_attempt, an_outcome

PRICES = {"tiny": ModelEntry("tiny", 2.0, 8.0, 1.0)}

attempts = st.builds(
    an_attempt,
    engine=st.sampled_from(["http://a:1", "http://a:1#1", "http://b:1"]),
    result=st.sampled_from(["ok", "connection_reset"]),
    actual_ttft_s=st.sampled_from([None, 0.25]),
    actual_cached_input_tokens=st.sampled_from([None, 32]),
    prefill_engine=st.sampled_from([None, None, "http://p:1"]),
)
outcomes = st.builds(
    an_outcome,
    request=st.builds(a_request, model=st.sampled_from(["tiny", "large", "invented"]), stream=st.booleans()),
    at_s=st.sampled_from([1000.0 * PERIOD_S, 1001.0 * PERIOD_S]),
    tenant=st.sampled_from([None, "legal", "sales"]),
    tier=st.sampled_from(["default", "gold"]),
    status=st.sampled_from([200, 429, 502]),
    reason=st.sampled_from([None, None, Reason.OVERLOADED]),
    slo_met=st.sampled_from([None, True, False]),
    usage=st.sampled_from([None, Usage(100, 11, 96), Usage(16, 1), Usage(16, 4, 32)]),
    ttft_s=st.sampled_from([None, 0.5]),
    attempts=st.lists(attempts, max_size=2).map(tuple),
    coalesced_with=st.sampled_from([None, None, None, "r-0"]),
    resumes=st.sampled_from([0, 0, 1]),
    resume_failure=st.sampled_from([None, None, ResumeBlocker.TOOL_CALL]),
)


class Counted:
    """All counters of a gateway that are fed by requests."""

    def __init__(self) -> None:
        fleet = Fleet()
        for url, pool in (("http://a:1", "h100"), ("http://b:1", "l40s"), ("http://p:1", "prefill")):
            fleet.put(Pod(url, PodState.READY, frozenset({"tiny", "large"}), pool=pool))
        tiers = TierCounters(fleet)
        self.page = OutcomeTotals(lambda group: sum(sum(cost) for _, cost in group.costs(PRICES)), fleet.knows)
        self.judged = 0
        self.special = list[Outcome]()
        self.tallies = RequestCounters(
            fleet.knows,
            fleet,
            prices=PRICES,
            judge=self._judge,
            special=[self.special.append],
            groups=[tiers.add, self.page.add],
            attempts=[self.page.add_attempts],
            period_s=PERIOD_S,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.tallies)
        self.registry.register(TierCollector(tiers, fleet, tuple))

    def _judge(self, _: object) -> None:
        self.judged += 1

    def values(self) -> dict[tuple[object, ...], float]:
        """Return everything that is counted."""
        self.tallies.count_fresh()
        found: dict[tuple[object, ...], float] = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.registry.collect()
            for sample in family.samples
        }
        for name, tenant in self.page.tenants.items():
            found |= {("tenant", name, at): count for at, count in enumerate([*tenant.total, *tenant.recent(1001)])}
            found |= {("tenant", name, reason): count for reason, count in tenant.rejected_recently(1001).items()}
        for key, tier in self.page.tiers.items():
            found |= {("tier", *key, at): count for at, count in enumerate([*tier.total, *tier.recent(1001)])}
            found |= {("ttft", *key, at): count for at, count in enumerate(tier.recent_ttft(1001).counts)}
        for url, pod in self.page.pods.items():
            found |= {("pod", url, at): count for at, count in enumerate([*pod.total, *pod.recent(1001)])}
        return found


@settings(max_examples=60, deadline=None)
@given(st.lists(outcomes, max_size=12).map(lambda found: sorted(found, key=lambda each: each.at_s)))
def test_groups_change_nothing_of_what_is_counted(ended: list[Outcome]) -> None:
    """Counters that are read after each request, those that are read at the end, and those without any room."""
    each, together = Counted(), Counted()
    for outcome in ended:
        each.tallies.on_outcome(outcome)
        each.values()
        together.tallies.on_outcome(outcome)
    assert together.values() == pytest.approx(each.values())
    assert together.judged == each.judged == sum(bool(outcome.attempts) for outcome in ended)
    assert together.special == each.special == [outcome for outcome in ended if not is_alike(outcome)]


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are counted when there are more, in each batch as many as it has brought."""
    monkeypatch.setattr(requests, "MAX_GROUPS", 2)
    monkeypatch.setattr(requests, "BATCH_SIZE", 4)
    groups, sums = list[RequestGroup](), list[AttemptSums]()
    counts = RequestCounters(lambda _: True, Fleet(), groups=[groups.append], attempts=[sums.append])
    for number in range(4):
        attempt = an_attempt(engine=f"http://{number}:1")
        counts.on_outcome(an_outcome(tenant=f"t{number}", attempts=(attempt,)))
    assert [group.tenant for group in groups] == ["t0", "t1"]
    assert [each.engine for each in sums] == ["http://0:1", "http://1:1"]
    counts.count_fresh()
    assert sorted(counts.tenants.by_tenant) == ["t0", "t1", "t2", "t3"]


def test_observers_of_batches_see_each_request_once() -> None:
    """Those that are like others too, in their order."""
    counts, found = RequestCounters(lambda _: True, Fleet()), list[Outcome]()
    counts.observe_batches(found.append)
    ended = [an_outcome(), an_outcome(resumes=1), an_outcome(attempts=())]
    for outcome in ended:
        counts.on_outcome(outcome)
    counts.count_fresh()
    counts.count_fresh()
    assert found == ended


def test_a_record_that_cannot_be_counted_is_not_counted_again() -> None:
    """It takes its batch along, and nothing accumulates."""
    counts = RequestCounters(lambda _: True, Fleet())
    counts.on_outcome(an_outcome(usage="nonsense"))
    with pytest.raises(AttributeError):
        counts.count_fresh()
    counts.on_outcome(an_outcome())
    assert counts.models["tiny"].requests[200, ""] >= 1
