"""New pods are held, replayed to by one gateway, and let go, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.config.pools import PoolEntry
from gateway.warmup.controller import CLAIM_S, FOLLOW_S, FRESH_S
from gateway.warmup.metrics import WarmupCollector
from gateway.warmup.replay import ReplayEnd
from routing.facts import PodFacts, Role
from routing.pods import PodState
from simulator.clock import run_virtually
from supply.policy import ControlMode
from supply.warmup import SkipReason, StopReason
from tenancy.tenants import Caller, Tenant
from tests.gateway.warmup.scene import ACT, PREFIXES, REPLAY_S, Gateway, Received, until
from tests.routing.engines import MODEL, TALK, ask

NEW = "http://new"


def play(scene: Callable[[list[Gateway], Received], Awaitable[None]], count: int = 1) -> None:
    """Run a scene with so many gateways that know what is hot."""

    async def run() -> None:
        gateways, received = list[Gateway](), Received()
        for number in range(count):
            Gateway(number + (count > 1), gateways, received).learn()
        await asyncio.sleep(2.0)
        try:
            await scene(gateways, received)
        finally:
            for each in gateways:
                each.running.cancel()
                await asyncio.gather(each.running, return_exceptions=True)
                assert each.router.ledger.is_empty()
                assert not each.controller.held

    run_virtually(run())


def ends(gateway: Gateway) -> dict[StopReason, int]:
    """Why its warm-ups have ended."""
    return dict(gateway.controller.counters.ends)


def test_a_new_pod_gets_each_hot_prefix_before_load() -> None:
    """It is no candidate meanwhile; afterwards the index knows what it holds, and the log what was done."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        assert gateway.add(NEW)
        assert gateway.holds(NEW)
        took_s = await until(lambda: not gateway.holds(NEW))
        assert PREFIXES * REPLAY_S <= took_s < PREFIXES * REPLAY_S + 1.0
        assert Counter(pod for _, pod, _ in received) == {NEW: PREFIXES}
        assert len({key for _, _, key in received}) == PREFIXES
        engine = gateway.router.fleet.engine(NEW)
        assert engine is not None
        assert gateway.router.index.match(ask(b"0" + TALK).prompt, 1 << engine.slot)
        event, fields = gateway.events[-1]
        assert (event, fields["reason"], fields["replays"]) == ("pod_warmed", "done", PREFIXES)
        families = {each.name: each for each in WarmupCollector(gateway.controller).collect()}
        assert families["hearth_warmup_replays"].samples[0].value == PREFIXES
        assert families["hearth_warmup_tokens"].samples[0].value == 1_000 * PREFIXES

    play(scene)


def test_one_of_several_gateways_replays_and_all_hold() -> None:
    """They find the pods at different times; each prefix goes once to each pod; no pod takes load before."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        pods = [f"http://new-{number}" for number in range(10)]
        for pod in pods:
            for gateway in gateways:
                await asyncio.sleep(0.03)
                assert gateway.add(pod)
        await until(lambda: not any(gateway.holds(pod) for gateway in gateways for pod in pods))
        assert set(Counter((pod, key) for _, pod, key in received).values()) == {1}
        assert Counter(pod for _, pod, _ in received) == dict.fromkeys(pods, PREFIXES)
        owners = {pod: {number for number, other, _ in received if other == pod} for pod in pods}
        assert all(len(numbers) == 1 for numbers in owners.values())
        assert len(set.union(*owners.values())) > 1

    play(scene, 4)


def test_a_gateway_without_prompts_owns_no_pods() -> None:
    """Clients that keep their connections may reach one worker only: the one that knows what is hot replays."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        for gateway in gateways[1:]:
            gateway.store.clear()
        await asyncio.sleep(2.0)
        pods = [f"http://new-{number}" for number in range(6)]
        for pod in pods:
            assert all([gateway.add(pod) for gateway in gateways])  # noqa: C419 - all of them see it
        await until(lambda: not any(gateway.holds(pod) for gateway in gateways for pod in pods))
        assert {number for number, _, _ in received} == {gateways[0].number}
        assert Counter(pod for _, pod, _ in received) == dict.fromkeys(pods, PREFIXES)

    play(scene, 3)


def test_no_more_pods_are_warmed_at_once_than_allowed() -> None:
    """By all gateways together; the others wait their turn within their time."""

    async def run() -> None:
        gateways, received = list[Gateway](), Received()
        policy = replace(ACT, prewarm_max_pods=3, prewarm_max_s=60.0)
        for number in (1, 2):
            Gateway(number, gateways, received, policy).learn()
        await asyncio.sleep(2.0)
        pods = [f"http://new-{number}" for number in range(9)]
        for pod in pods:
            for gateway in gateways:
                gateway.add(pod)
        max_under_way = 0
        while any(gateway.holds(pod) for gateway in gateways for pod in pods):
            under_way = [each for gateway in gateways for each in gateway.controller.held.values() if each.task]
            max_under_way = max(max_under_way, len(under_way))
            await asyncio.sleep(0.05)
        assert max_under_way == 3
        assert len(received) == 9 * PREFIXES
        for gateway in gateways:
            gateway.running.cancel()

    run_virtually(run())


def test_an_owner_that_dies_delays_pods_for_a_bounded_time() -> None:
    """The others let the pod go, or take it over, when the owner has fallen silent."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        received.takes_s = 3.0
        for gateway in gateways:
            gateway.add(NEW)
        await until(lambda: bool(received))
        owner = next(each for each in gateways if each.number == received[0][0])
        owner.is_cut = True
        others = [each for each in gateways if each is not owner]
        took_s = await until(lambda: not any(each.holds(NEW) for each in others))
        assert took_s <= ACT.prewarm_max_s + FOLLOW_S + FRESH_S

    play(scene, 3)


@pytest.mark.parametrize("others", ["in another region", "of a provider", "that only decode"])
def test_a_pod_that_alone_may_compute_some_requests_takes_load_at_once(others: str) -> None:
    """Those of tenants of its region, or without a grant, would be rejected while it is held."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        for url in ("http://0", "http://1"):
            known = gateway.router.fleet.pod(url)
            assert known is not None
            if others == "of a provider":
                gateway.router.put_pod(replace(known, provider="cloud"))
            elif others == "that only decode":
                gateway.router.fleet.override_role(url, Role.DECODE)
        assert not gateway.add(NEW, region="eu" if others == "in another region" else None)
        assert not received

    play(scene)


def test_a_pod_that_only_decodes_is_not_held() -> None:
    """No prompt is replayed to it, here or by another gateway."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        assert not gateways[0].add(NEW, role=Role.DECODE)

    play(scene, 2)


def test_prompts_of_one_tenant_that_fail_end_no_warm_up() -> None:
    """Those of others are replayed before its next one."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        received.failing_tenant = "a"
        for number in range(20):
            request = ask(b"a%d" % (number % 4) + TALK + b"%d" % number * 300)
            gateway.store.observe(request, b"", "/v1/chat/completions", Caller(Tenant("a")))
        assert gateway.add(NEW)
        await until(lambda: not gateway.holds(NEW))
        assert len(received) > PREFIXES
        assert gateway.controller.counters.replays == PREFIXES

    play(scene)


def test_a_pod_that_no_gateway_claims_is_let_go() -> None:
    """Its owner does not see it."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        urls = [f"http://new-{number}" for number in range(20)]
        are_held = [gateways[0].add(url) for url in urls]
        assert all(are_held)
        await asyncio.sleep(CLAIM_S - 1.0)
        left = [url for url in urls if gateways[0].holds(url)]
        assert left
        await until(lambda: not any(gateways[0].holds(url) for url in urls))

    play(scene, 2)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("gold waits", StopReason.OBJECTIVE),
        ("alone", StopReason.ALONE),
        ("unhealthy", StopReason.UNHEALTHY),
        ("slow", StopReason.TIME),
        ("failing", StopReason.FAILED),
    ],
)
def test_a_warm_up_ends_early(case: str, reason: StopReason) -> None:
    """When its capacity is needed, when the pod fails, or when its time is over: no replay begins afterwards."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        received.takes_s = 20.0 if case == "slow" else 2.0
        received.end = ReplayEnd.FAILED if case == "failing" else ReplayEnd.COMPUTED
        gateway.add(NEW)
        await until(lambda: bool(received))
        if case == "gold waits":
            gateway.wait_share = 0.3
        elif case == "alone":
            for url in ("http://0", "http://1"):
                gateway.stand(url, PodState.UNREADY)
        elif case == "unhealthy":
            gateway.stand(NEW, PodState.OPEN_CIRCUIT)
        await until(lambda: not gateway.controller.held)
        assert ends(gateway) == {reason: 1}
        count = len(received)
        await asyncio.sleep(5.0)
        assert len(received) == count
        assert gateway.holds(NEW) is (case == "unhealthy")

    play(scene)


def test_text_of_other_regions_and_ranks_stays() -> None:
    """A pod of another region, and one of a pool of higher rank, get nothing; it is counted why."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        pools = {"cloud": PoolEntry("cloud", 4.0, MODEL, rank=1), "own": PoolEntry("own", 2.0, MODEL)}
        gateway.controller._pools = lambda: pools
        pod = gateway.router.fleet.pod("http://1")
        assert pod is not None
        gateway.router.put_pod(replace(pod, pool="cloud"))
        gateway.controller._advise(replace(pod, pool="cloud"))
        assert gateway.events[-1][1]["skipped"] == {SkipReason.RANK.value: PREFIXES}
        gateway.controller._advise(replace(pod, facts=PodFacts(spill_rank=2)))
        assert gateway.events[-1][1]["skipped"] == {SkipReason.RANK.value: PREFIXES}
        gateway.store.clear()
        gateway.learn(Caller(Tenant("bank", regions=frozenset({"on-prem"}))))
        assert not gateway.add(NEW), "there is nothing to replay to a pod of an unknown region"
        assert received == []

    play(scene)


def test_advise_holds_no_pod_and_says_what_it_would_do() -> None:
    """Nothing is sent."""

    async def run() -> None:
        gateways, received = list[Gateway](), Received()
        gateway = Gateway(0, gateways, received, replace(ACT, prewarm=ControlMode.ADVISE))
        gateway.learn()
        assert not gateway.add(NEW)
        event, fields = gateway.events[-1]
        assert (event, fields["replays"]) == ("warmup_advised", PREFIXES)
        assert gateway.controller.counters.advised_tokens > 1_000
        assert received == []
        gateway.running.cancel()

    run_virtually(run())


def test_adapters_of_its_own_do_not_make_a_pod_the_only_one() -> None:
    """Its base model has other pods; the first pod of a model takes load at once."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        assert gateway.add(NEW, "tuned")
        await until(lambda: not gateway.holds(NEW))
        for url in ("http://0", "http://1", NEW):
            gateway.stand(url, PodState.UNREADY)
        assert not gateway.add("http://other")

    play(scene)


def test_a_rejected_prompt_is_forgotten() -> None:
    """The pod is well; the prompt is not for it, and is sent to no other pod."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        (gateway,) = gateways
        received.end = ReplayEnd.REJECTED
        gateway.add(NEW)
        await until(lambda: not gateway.holds(NEW))
        assert ends(gateway) == {StopReason.DONE: 1}
        assert len(gateway.store) == 0
        assert gateway.controller.counters.replays == 0

    play(scene)


def test_messages_that_cannot_be_read_change_nothing() -> None:
    """Those of other features share the way."""

    async def scene(gateways: list[Gateway], received: Received) -> None:
        for payload in (b"", b"\x93", b"\x92\x01\x90", b"\x94\x03\x01\x02\xc3"):
            gateways[0].controller.take(9, payload, 0.0)
        assert gateways[0].add(NEW)
        await until(lambda: not gateways[0].holds(NEW))

    play(scene)
