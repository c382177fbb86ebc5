"""Which prefixes a new pod is given, by whom, and when that ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routing.blocks import Prompt
from supply.warmup import (
    MAX_FAILURES,
    ReplayOption,
    ReplayTerms,
    SkipReason,
    StopReason,
    WarmupBudget,
    WarmupTarget,
    owner_of,
    plan_replays,
    slots_of,
    stop_reason,
)

ENGINE = WarmupTarget(frozenset({"m"}), "on-prem", kv_tokens=100_000.0)
BUDGET = WarmupBudget()


def option(*blocks: int, uses: float = 5.0, each: int = 1_000, terms: ReplayTerms = ReplayTerms()) -> ReplayOption:  # noqa: B008 - a value
    """A prefix of these blocks, of so many tokens each."""
    prompt = Prompt(blocks, range(each, each * len(blocks) + 1, each), each * len(blocks))
    return ReplayOption(blocks[-1], "m", prompt, float(each * len(blocks)), uses, terms)


def test_the_hottest_come_first_within_the_budget() -> None:
    """What does not fit any more is skipped and counted, and what is shorter may still fit."""
    options = [option(1, uses=3), option(2, 3, uses=9), option(4, 5, 6, uses=6), option(7, uses=2)]
    plan = plan_replays(options, ENGINE, WarmupBudget(max_tokens=4_000))
    assert [each.key for each in plan.replays] == [3, 1, 7]
    assert (plan.tokens, plan.skipped) == (4_000, {SkipReason.TOKENS: 1})


def test_a_prefix_is_covered_by_a_longer_one() -> None:
    """Each token is computed once: the longer one takes the place of what it begins with, and costs only the rest."""
    options = [option(1, uses=9), option(1, 2, uses=6), option(1, 2, 3, uses=2), option(8, uses=7)]
    plan = plan_replays(options, ENGINE, BUDGET)
    assert [each.key for each in plan.replays] == [3, 8]
    assert plan.tokens == 4_000


def test_two_that_part_share_their_beginning_once() -> None:
    """The second costs only what the first has not."""
    plan = plan_replays([option(1, uses=9), option(1, 2, uses=5), option(1, 3, uses=4)], ENGINE, BUDGET)
    assert sorted(each.key for each in plan.replays) == [2, 3]
    assert plan.tokens == 3_000


def test_replays_fill_only_their_share_of_the_kv_blocks() -> None:
    """So that they evict nothing: what is used already counts."""
    options = [option(block, uses=10 - block) for block in range(1, 8)]
    target = replace(ENGINE, kv_tokens=10_000.0, used_kv_tokens=2_000.0)
    plan = plan_replays(options, target, WarmupBudget(kv_share=0.5))
    assert [each.key for each in plan.replays] == [1, 2, 3]
    assert plan.skipped == {SkipReason.KV_ROOM: 4}


@pytest.mark.parametrize(
    ("terms", "target", "reason"),
    [
        (ReplayTerms(frozenset({"eu"})), ENGINE, SkipReason.REGION),
        (ReplayTerms(frozenset({"on-prem"})), replace(ENGINE, region=None), SkipReason.REGION),
        (ReplayTerms(), replace(ENGINE, is_higher_rank=True), SkipReason.RANK),
        (ReplayTerms(frozenset({"on-prem"}), may_leave=True), replace(ENGINE, region="cloud"), SkipReason.REGION),
        (ReplayTerms(), replace(ENGINE, models=frozenset({"other"})), SkipReason.MODEL),
    ],
)
def test_text_goes_only_where_its_tenant_may_be_computed(
    terms: ReplayTerms, target: WarmupTarget, reason: SkipReason
) -> None:
    """A region that is not known is none; a pool of higher rank needs the tenant's consent, which opens no region."""
    plan = plan_replays([option(1, terms=terms)], target, BUDGET)
    assert (plan.replays, plan.skipped) == ((), {reason: 1})


def test_consent_opens_pools_of_higher_rank() -> None:
    """In the regions that the tenant allows."""
    terms = ReplayTerms(frozenset({"cloud"}), may_leave=True)
    target = replace(ENGINE, region="cloud", is_higher_rank=True)
    assert plan_replays([option(1, terms=terms)], target, BUDGET).replays


def test_what_the_engine_holds_is_not_replayed() -> None:
    """Another gateway may have begun; a prefix that is shorter than a replay is worth is left out too."""
    held = replace(option(1, 2), held_tokens=1_990.0)
    part = replace(option(3, 4), held_tokens=1_000.0)
    plan = plan_replays([held, part, option(5, each=10)], ENGINE, BUDGET)
    assert [each.key for each in plan.replays] == [4]
    assert plan.tokens == 1_000
    assert plan.skipped == {SkipReason.CACHED: 1, SkipReason.TOO_SHORT: 1}


def test_all_gateways_agree_on_an_owner_and_few_pods_move() -> None:
    """When a gateway goes only its own pods change hands; the pods are spread over all."""
    pods, gateways = [f"http://pod-{number}" for number in range(200)], list(range(100, 108))
    owners = {pod: owner_of(pod, reversed(gateways), 8) for pod in pods}
    assert owners == {pod: owner_of(pod, gateways, 8) for pod in pods}
    assert {owners[pod] for pod in pods} == set(gateways)
    after = {pod: owner_of(pod, gateways[1:], 8) for pod in pods}
    assert all(after[pod] == owners[pod] for pod in pods if owners[pod] != gateways[0])
    assert owner_of("http://pod", (), 8) is None


def test_all_gateways_together_warm_no_more_pods_than_allowed() -> None:
    """The bound is divided; where it is lower than the number of gateways the others own none."""
    for gateways in (range(1), range(3), range(8), range(20)):
        for bound in (1, 5, 8):
            assert sum(slots_of(each, gateways, bound) for each in gateways) == bound
            owners = {owner_of(f"http://{pod}", gateways, bound) for pod in range(100)}
            assert all(slots_of(owner, gateways, bound) > 0 for owner in owners if owner is not None)


def test_when_a_warm_up_ends() -> None:
    """Whatever is wrong with the pod first, then what others need it for, then its own bounds."""

    def reason(**given: float) -> StopReason | None:
        facts = {"spent_s": 1.0, "failures": 0, "is_ready": 1, "others": 3, "wait_share": 0.0} | given
        return stop_reason(
            BUDGET,
            spent_s=facts["spent_s"],
            failures=int(facts["failures"]),
            is_ready=bool(facts["is_ready"]),
            others=int(facts["others"]),
            wait_share=facts["wait_share"],
        )

    assert reason() is None
    assert reason(is_ready=0, others=0) is StopReason.UNHEALTHY
    assert reason(others=0, wait_share=1.0) is StopReason.ALONE
    assert reason(wait_share=BUDGET.max_wait_share) is StopReason.OBJECTIVE
    assert reason(failures=MAX_FAILURES) is StopReason.FAILED
    assert reason(spent_s=BUDGET.max_s) is StopReason.TIME
