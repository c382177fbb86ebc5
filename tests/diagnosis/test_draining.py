"""Which pods may be drained."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from diagnosis.draining import MAX_POOL_SHARE, POOL_WIDE_SHARE, BoundPods, DrainPolicy, drainable
from diagnosis.facts import FleetFacts
from diagnosis.finding import Finding, Question, Severity
from tests.diagnosis.scene import NOW_S, pod

POLICY = DrainPolicy(recipes=frozenset({"rdma_port_down"}))


def facts(size: int) -> FleetFacts:
    return FleetFacts(NOW_S, tuple(pod(f"c{number}") for number in range(size)))


def finding(*numbers: int, recipe: str = "rdma_port_down") -> Finding:
    return Finding(
        recipe=recipe,
        title="",
        question=Question.DECODE,
        severity=Severity.FAILING,
        pool="chat",
        pods=tuple(f"http://c{number}:8000" for number in numbers),
        confidence=0.9,
        evidence=(),
        cause="",
        first_step="",
        helped="",
        wrong_if="",
        since_s=NOW_S,
    )


def test_one_pod_may_be_drained_where_policy_names_the_recipe() -> None:
    """And none where it does not, or where the finding is advice."""
    assert drainable([finding(1)], facts(4), POLICY).drained == ("http://c1:8000",)
    assert drainable([finding(1)], facts(4), DrainPolicy()).drained == ()
    assert drainable([replace(finding(1), severity=Severity.ADVICE)], facts(4), POLICY).drained == ()


def test_a_fault_of_the_pool_drains_nothing() -> None:
    """More than 30 % with the same finding: an alert."""
    plan = drainable([finding(0, 1, 2, 3)], facts(10), POLICY)
    assert plan.drained == ()
    assert plan.pool_wide == (("rdma_port_down", "chat"),)


def test_a_pool_of_two_may_drain_one() -> None:
    """Where the other one suffices."""
    assert drainable([finding(0)], facts(2), POLICY).drained == ("http://c0:8000",)
    needs_both = replace(POLICY, needed={"chat": 2})
    assert drainable([finding(0)], facts(2), needs_both).drained == ()
    assert drainable([finding(0)], facts(1), POLICY).drained == ()


def test_what_was_drained_is_restored_when_its_evidence_is_gone() -> None:
    """Or when more pods are needed."""
    drained = ("http://c1:8000",)
    assert drainable([finding(1)], facts(4), POLICY, drained).drained == drained
    assert drainable([], facts(4), POLICY, drained).restored == drained
    needs_all = replace(POLICY, needed={"chat": 4})
    assert drainable([finding(1)], facts(4), needs_all, drained).restored == drained


def test_pods_that_some_requests_are_bound_to_stay() -> None:
    """The only one of a region; where another ready one is there too, it may be drained, and only one of them."""
    addresses = [f"http://c{number}:8000" for number in range(20)]
    only = replace(POLICY, bound=(BoundPods(frozenset(addresses[1:2])),))
    assert drainable([finding(1)], facts(20), only).drained == ()
    assert drainable([finding(1, 2)], facts(20), only).drained == (addresses[2],)
    assert drainable([finding(1)], facts(20), only, (addresses[1],)).restored == (addresses[1],)
    both = replace(POLICY, bound=(BoundPods(frozenset(addresses[1:3])),))
    assert drainable([finding(1)], facts(20), both).drained == (addresses[1],)
    assert drainable([finding(1, 2)], facts(20), both).drained == (addresses[1],)
    assert drainable([finding(2)], facts(20), both, (addresses[1],)).drained == ()
    two = replace(POLICY, bound=(BoundPods(frozenset(addresses[1:3]), needed=2),))
    assert drainable([finding(1, 5)], facts(20), two).drained == (addresses[5],)


def test_a_choice_stays_while_another_pod_fails_too() -> None:
    """No exchange of one drained pod for another."""
    drained = ("http://c3:8000",)
    plan = drainable([finding(1, 3)], facts(10), POLICY, drained)
    assert plan.drained == drained
    assert plan.restored == ()


@given(
    st.integers(1, 40),
    st.sets(st.integers(0, 39)),
    st.sets(st.integers(0, 39)),
    st.integers(0, 40),
    st.sets(st.integers(0, 39), max_size=3),
)
def test_drained_pods_are_few_and_the_needed_ones_stay(
    size: int, ill: set[int], other: set[int], needed: int, before: set[int]
) -> None:
    """Whatever is found."""
    held = facts(size)
    drained = tuple(f"http://c{number}:8000" for number in before if number < size)
    policy = DrainPolicy(frozenset({"rdma_port_down", "kv_pressure"}), {"chat": needed})
    findings = [finding(*(n for n in ill if n < size)), finding(*(n for n in other if n < size), recipe="kv_pressure")]
    plan = drainable(findings, held, policy, drained)
    new = set(plan.drained) - set(drained)
    assert len(plan.drained) <= max(1, int(MAX_POOL_SHARE * size))
    assert set(plan.restored) == set(drained) - set(plan.drained)
    if new:
        assert size - len({*drained, *plan.drained}) >= needed
        assert len({*drained, *plan.drained}) < size
    for each in findings:
        if len(each.pods) > max(1.0, POOL_WIDE_SHARE * size):
            assert each.key in plan.pool_wide
