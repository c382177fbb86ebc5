"""A canary from outcomes to verdicts, log lines, metrics and the admin port, through a real router's choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from gateway.canary.controller import RENEW_S
from gateway.canary.state_store import ChangeState, MemoryStore, StateUnavailable
from gateway.pipeline.attempt import AttemptStatus
from routing.canary.change import StartedServer
from routing.canary.rollout import CanaryReason, CanaryUse
from routing.canary.verdict import CanaryState, CanaryTerms, Verdict, VerdictReason
from routing.eligible import PairingFallback
from routing.facts import Role
from routing.pods import EngineShape, PodState
from routing.request import Api, Request
from tests.gateway.canary.scene import CANARY, MODEL, STANDING, TERMS, Scene, an_end


async def test_a_slow_canary_is_reverted() -> None:
    """It has its share until the evidence is there, and nothing after; that is logged with the evidence."""
    scene = Scene()
    await scene.look()
    assert scene.logged[0] == (
        "canary_started",
        {
            "level": "info",
            "canary": "v2",
            "traffic_share": 0.25,
            "evidence": [f"{kind}: no comparisons yet (limit {limit})" for kind, limit in LIMITS],
            "options": [],
        },
    )
    served = await scene.serve_many(400, slower=3.0)
    assert 0 < served.count(CANARY) < 50
    event, fields = scene.logged[-1]
    assert (event, fields["level"], fields["reason"]) == ("canary_reverted", "error", "ttft_worse")
    assert "ttft 2." in fields["evidence"][0]
    assert CANARY not in served[-300:]


LIMITS = (("ttft", "1.1"), ("tpot", "1.1"), ("errors", "0.2"), ("quality", "0.02"))


async def test_a_sound_canary_is_promoted() -> None:
    """In the end it serves like the others, beyond its share."""
    scene = Scene()
    await scene.look()
    served = await scene.serve_many(600, slower=0.9)
    assert scene.controller.verdict is Verdict.PROMOTE
    assert scene.events == ["canary_started", "canary_promoted"]
    assert served[-90:].count(CANARY) > 25


@pytest.mark.parametrize("end", [end for end in AttemptStatus if end.is_pod_failure])
async def test_every_fault_of_a_pod_counts(end: AttemptStatus) -> None:
    """What the pipeline counts against a pod's health counts against a canary: a hung engine too."""
    scene = Scene()
    await scene.look()
    await scene.serve_many(150, result=end.value)
    assert (scene.controller.verdict, scene.controller.reason) == (Verdict.REVERT, VerdictReason.ERRORS_WORSE)


async def test_a_pair_that_fails_counts_for_its_prefill_pod() -> None:
    """Though the request is answered by another engine afterwards."""
    scene = Scene()
    await scene.look()
    for number in range(100):
        for prefill in (STANDING[0], CANARY):
            request = Request(f"{prefill}{number}", Api.CHAT, MODEL)
            outcome = an_end(request, STANDING[1], 0.1)
            fallback = PairingFallback.PREFILL_FAILED if prefill == CANARY else None
            attempt = with_fields(outcome.attempts[0], prefill_engine=prefill, fallback_reason=fallback)
            outcome.attempts = (attempt,)
            scene.controller.on_outcome(outcome)
    await scene.look()
    assert scene.controller.reason is VerdictReason.ERRORS_WORSE


@pytest.mark.parametrize(
    ("slower", "result"), [(1.0, AttemptStatus.UPSTREAM_5XX), (9.0, AttemptStatus.OK)], ids=["failing", "slow"]
)
@pytest.mark.parametrize("has_tenants", [True, False])
async def test_a_tenant_whose_requests_fail_at_the_canary_has_it_not_reverted(
    has_tenants: bool, slower: float, result: AttemptStatus
) -> None:
    """It sends nine tenths of the requests, and what fails or is slow wherever it goes only to the canary: the trial is
    held, with its reason. Where tenants are not told apart, or the others' requests fail too, it is reverted.
    """
    scene = Scene(has_tenants=has_tenants)
    await scene.look()
    for number in range(600):
        is_honest = number % 10 == 0
        tenant = f"honest{number // 10 % 4}" if is_honest else "attacker"
        scene.serve(number, *((1.0, "ok") if is_honest else (slower, result.value)), tenant=tenant)
        if number % 20 == 19:
            await scene.look(0.1)
    shown = scene.controller.show()
    if not has_tenants:
        assert shown["verdict"] == "revert"
        return
    assert (shown["verdict"], shown["reason"], shown["serves"]) == ("hold", "one_tenant", "share")
    assert scene.events == ["canary_started", "canary_held"]
    assert scene.logged[-1][1]["level"] == "warning"
    for number in range(600, 1_600):
        scene.serve(number, slower, result.value, tenant=f"honest{number % 4}")
    await scene.look()
    assert scene.controller.verdict is Verdict.REVERT


async def test_one_tenant_decides_where_the_operator_says_so() -> None:
    """Then its requests are counted like those without a tenant."""
    scene = Scene(terms=replace(TERMS, one_tenant_decides=True), has_tenants=True)
    await scene.look()
    for number in range(400):
        scene.serve(number, 3.0, tenant="acme")
    await scene.look()
    assert scene.controller.verdict is Verdict.REVERT


async def test_failures_of_pods_that_vanish_count() -> None:
    """All pods of a canary are gone from the fleet when their requests end: those have failed at the canary."""
    scene = Scene()
    await scene.look()
    for number in range(40):
        outcome = an_end(Request(f"s{number}", Api.CHAT, MODEL), STANDING[0], 0.1)
        scene.controller.on_outcome(outcome)
        if number == 4:
            scene.router.remove_pod(CANARY)
            await scene.look()
            assert (scene.controller.reason, scene.rollout.use) == (VerdictReason.NO_POD, CanaryUse.NOTHING)
        failed = an_end(Request(f"c{number}", Api.CHAT, MODEL), CANARY, 0.1, AttemptStatus.CONNECTION_RESET)
        failed.attempts = (with_fields(failed.attempts[0], canary=CanaryReason.SHARE),)
        scene.controller.on_outcome(failed)
    await scene.look(RENEW_S + 1)
    assert scene.controller.show()["comparisons"][2]["comparisons"] == 40
    assert scene.controller.reason is VerdictReason.ERRORS_WORSE


async def test_without_its_pods_a_trial_goes_on_when_they_are_back() -> None:
    """Meanwhile the standing pods serve everything."""
    scene = Scene()
    await scene.look()
    await scene.serve_many(40)
    pod = scene.router.fleet.pod(CANARY)
    assert pod is not None
    scene.router.remove_pod(CANARY)
    assert set(await scene.serve_many(40)) == set(STANDING)
    await scene.look(60.0)
    assert scene.events[-1] == "canary_held"
    scene.router.put_pod(pod)
    scene.router.reshape_pod(CANARY, [EngineShape(kv_tokens=100_000)])
    await scene.look()
    assert CANARY in await scene.serve_many(20)
    assert scene.controller.show()["comparisons"][0]["comparisons"] > 10


async def test_a_gateway_with_other_limits_is_named() -> None:
    """The limits with which the trial began hold for both, and the second one reports them once."""
    store = MemoryStore()
    first = Scene(store)
    await first.look()
    second = Scene(store, replace(TERMS, max_ttft_ratio=2.0, min_comparisons=1))
    for _ in range(2):
        await second.look()
    expected = {"level": "warning", "canary": "v2", "limits": ["max_ttft_ratio: 1.1", "min_comparisons: 50"]}
    assert second.logged[1:] == [("canary_limits_kept", expected)]
    assert "canary_limits_kept" not in first.events
    assert second.controller.show()["comparisons"][0]["limit"] == 1.1


class BrokenStore(MemoryStore):
    """Raises what no store is known to raise."""

    async def update(self, change: ChangeState) -> CanaryState:
        """Fail."""
        raise RuntimeError("unforeseen")


async def test_comparisons_survive_a_store_that_raises() -> None:
    """Whatever it raises, they are shared later."""
    scene = Scene(BrokenStore())
    scene.controller.comparisons.add_quality(1)
    with pytest.raises(RuntimeError, match="unforeseen"):
        await scene.look()
    assert scene.controller.comparisons.take().quality.worse == 1


async def test_requests_of_the_gateway_itself_are_not_compared() -> None:
    """They run at the lowest priority."""
    scene = Scene()
    await scene.look()
    for pod in (STANDING[0], CANARY):
        outcome = an_end(Request("x-shadow", Api.CHAT, MODEL), pod, 0.1)
        outcome.tier = "shadow"
        scene.controller.on_outcome(outcome)
    await scene.look()
    assert scene.controller.show()["comparisons"][0]["comparisons"] == 0


async def test_a_trial_without_traffic_ends_by_the_clock() -> None:
    """It is reverted after its longest time, and the log says why."""
    scene = Scene(terms=replace(TERMS, max_duration_s=35.0))
    await scene.look()
    for _ in range(3):
        await scene.look(RENEW_S + 1)
    assert scene.controller.verdict is Verdict.HOLD
    await scene.look(RENEW_S + 1)
    assert scene.logged[-1][1]["reason"] == "max_duration"
    await scene.look(60.0)
    assert scene.events == ["canary_started", "canary_reverted"]


async def test_a_canary_waits_for_its_pods() -> None:
    """And for a pod that is ready."""
    scene = Scene()
    pod = scene.router.fleet.pod(CANARY)
    assert pod is not None
    scene.router.put_pod(replace(pod, state=PodState.STARTING))
    await scene.look()
    assert (scene.controller.reason, scene.rollout.use) == (VerdictReason.NO_POD, CanaryUse.NOTHING)
    scene.router.put_pod(pod)
    await scene.look()
    assert scene.rollout.use is CanaryUse.SHARE


OPTIONS = {"max-num-seqs": "128", "max-num-batched-tokens": "8192"}


def started(**more: str) -> StartedServer:
    """A server whose command line is known."""
    return StartedServer(OPTIONS | {name.replace("_", "-"): value for name, value in more.items()}, is_complete=True)


async def test_a_canary_of_configuration_with_two_changes_is_rejected() -> None:
    """Both options are named, with what to do; once one of them is taken back, the trial starts."""
    scene = Scene()
    scene.servers = dict.fromkeys(STANDING, started())
    scene.servers[CANARY] = started(max_num_seqs="256", max_num_batched_tokens="4096")
    await scene.look()
    event, fields = scene.logged[-1]
    assert (event, fields["level"], fields["reason"]) == ("canary_rejected", "error", "many_options")
    assert fields["options"] == ["--max-num-batched-tokens (8192 -> 4096)", "--max-num-seqs (128 -> 256)"]
    assert fields["fix"] == "change one option at a time, or set kind: release"
    assert set(await scene.serve_many(20)) == set(STANDING)
    scene.servers[CANARY] = started(max_num_seqs="256")
    await scene.look()
    assert scene.events[-1] == "canary_started"
    assert scene.controller.show()["options"] == ["--max-num-seqs (128 -> 256)"]


@pytest.mark.parametrize("lower_precision", [None, True])
async def test_lower_precision_is_held_without_a_comparison_of_answers(lower_precision: bool | None) -> None:
    """By its command line, or because the operator says so; with one it is promoted."""
    scene = Scene(terms=replace(TERMS, lower_precision=lower_precision))
    if lower_precision is None:
        scene.servers = dict.fromkeys(STANDING, started())
        scene.servers[CANARY] = started(kv_cache_dtype="nvfp4")
    await scene.look()
    await scene.serve_many(800, slower=0.9)
    assert (scene.controller.verdict, scene.controller.reason) == (Verdict.HOLD, VerdictReason.QUALITY_MISSING)
    assert (scene.events[-1], scene.logged[-1][1]["level"]) == ("canary_held", "warning")
    assert scene.controller.wants_quality
    for _ in range(500):
        scene.controller.comparisons.add_quality(0)
    await scene.look()
    assert scene.controller.verdict is Verdict.PROMOTE


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_a_canary_that_can_pair_with_no_standing_pod_is_rejected(role: Role) -> None:
    """Its revision is another; where it is said to hold the same weights, it starts."""
    roles = (Role.PREFILL, Role.DECODE, role)
    scene = Scene(roles=roles)
    await scene.look()
    assert scene.logged[-1][1]["reason"] == "no_partner"
    scene.router.fleet.revision_aliases = {"v2": "v1"}
    await scene.look()
    assert scene.events[-1] == "canary_started"


class Store(MemoryStore):
    """That may be away."""

    is_away = True

    async def update(self, change: ChangeState) -> CanaryState:
        """Fail while away."""
        if self.is_away:
            raise StateUnavailable("Redis: not connected")
        return await super().update(change)


async def test_before_the_state_is_read_the_canary_serves_nothing() -> None:
    """Its verdict may be that it is reverted; that it cannot be read is logged once."""
    store = Store()
    scene = Scene(store)
    await scene.look()
    await scene.look()
    assert scene.logged == [
        ("canary_state_unavailable", {"level": "warning", "canary": "v2", "error": "Redis: not connected"})
    ]
    assert set(await scene.serve_many(20)) == set(STANDING)
    store.is_away = False
    await scene.look()
    assert scene.events[-1] == "canary_started"


async def test_without_the_shared_state_the_last_verdict_holds() -> None:
    """What is compared meanwhile is kept, and decides once the state can be changed again."""
    store = Store()
    store.is_away = False
    scene = Scene(store)
    await scene.look()
    store.is_away = True
    served = await scene.serve_many(400, slower=3.0)
    assert (scene.controller.verdict, served.count(CANARY)) == (Verdict.HOLD, 100)
    store.is_away = False
    await scene.look()
    assert scene.controller.verdict is Verdict.REVERT


async def test_a_second_canary_is_rejected_while_one_runs() -> None:
    """Of another gateway on the same store; it says so, and serves nothing."""
    store = MemoryStore()
    first, second = Scene(store, replace(TERMS, name="first")), Scene(store)
    await first.look()
    await second.look()
    assert second.logged[-1][1]["reason"] == "another_canary"
    assert set(await second.serve_many(20)) == set(STANDING)
    for _ in range(3):
        first.now_s = second.now_s
        await first.look(0.0)
        await second.look(30.0)
    assert second.controller.show()["serves"] == "nothing"
    await second.look(61.0)
    assert second.rollout.use is CanaryUse.SHARE


async def test_what_is_shown() -> None:
    """Verdict, interval, share and options on the admin port; one verdict is 1 in metrics."""
    scene = Scene()
    await scene.look()
    await scene.serve_many(40)
    await scene.look()
    shown = scene.controller.show()
    assert (shown["verdict"], shown["serves"], shown["pods"]) == ("hold", "share", [CANARY])
    assert shown["requests"]["sessionless"] == {"offered": 40, "taken": 10}
    assert [each["comparisons"] for each in shown["comparisons"]] == [10, 10, 10, 0]
    families = {family.name: family for family in scene.controller.collect()}
    verdicts = {sample.labels["verdict"]: sample.value for sample in families["hearth_canary_verdict"].samples}
    assert verdicts == {"hold": 1.0, "promote": 0.0, "revert": 0.0}
    assert families["hearth_canary_requests"].samples[0].value == 10


def test_a_name_belongs_to_pool_and_revision() -> None:
    """Another revision under the same name is another canary."""
    assert CanaryTerms("x", revision="v2").identity != CanaryTerms("x", revision="v3").identity
