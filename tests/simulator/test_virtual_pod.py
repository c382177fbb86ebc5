"""Engines in virtual time that hand KV over: who computes, who fetches, what it takes, and what is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from simulator.clock import run_virtually
from simulator.link import Link
from simulator.profile import Profile
from simulator.sequence import Milestone, MilestoneKind, Sequence
from simulator.virtual_pod import LEASE_S, VirtualPod

PROFILE = Profile(kv_capacity_tokens=64_000)
LINK = Link(bytes_per_token=1_000, bytes_per_s=8_000_000.0, fixed_s=0.5)
"""Eight thousand tokens a second."""

PROMPT = 8_000


@dataclass
class Pods:
    """Two engines and what was heard of them."""

    prefill: VirtualPod
    decode: VirtualPod
    received: list[Milestone] = field(default_factory=list)

    async def prefilled(self, name: str, prompt: int = PROMPT) -> None:
        """Wait until a prompt is computed and held."""
        ended = asyncio.Event()

        def listen(milestone: Milestone) -> None:
            if milestone.kind is MilestoneKind.FINISHED:
                ended.set()

        self.prefill.submit(Sequence(name, prompt, 1, is_held=True), listen)
        await ended.wait()

    def decode_it(self, name: str, prompt: int = PROMPT, answer: int = 4) -> None:
        """Begin to decode what was prefilled."""
        sequence = Sequence(f"{name}-d", prompt, answer, remote_tokens=prompt)
        self.decode.submit(sequence, self.received.append, (self.prefill, name))

    @property
    def first_token_s(self) -> float:
        """When the decoding engine's first token came."""
        return next(one.at for one in self.received if one.kind is MilestoneKind.FIRST_TOKEN)


def make_pods() -> Pods:
    loop = asyncio.get_running_loop()
    return Pods(VirtualPod(PROFILE, loop, LINK), VirtualPod(PROFILE, loop, LINK))


def test_a_transfer_takes_its_bytes_and_its_fixed_part() -> None:
    """The first token comes after wire, fixed seconds and one step; the prompt is computed once."""

    async def scene() -> tuple[Pods, float]:
        pods = make_pods()
        await pods.prefilled("a")
        begun_s = asyncio.get_running_loop().time()
        assert pods.prefill.statistics().kv_usage > 0
        pods.decode_it("a")
        await asyncio.sleep(10)
        return pods, begun_s

    pods, begun_s = run_virtually(scene())
    assert pods.first_token_s - begun_s == pytest.approx(1.5 + PROFILE.step_base_s, abs=0.001)
    assert pods.decode.engine.statistics().computed_prompt_tokens == 1
    assert pods.decode.engine.statistics().fetched_tokens == PROMPT
    assert pods.prefill.engine.statistics().kv_usage == 0


def test_two_transfers_share_the_wire() -> None:
    """The second waits for the first, but not for its fixed part."""

    async def scene() -> Pods:
        pods = make_pods()
        await pods.prefilled("a")
        await pods.prefilled("b")
        pods.begun_s = asyncio.get_running_loop().time()  # type: ignore[attr-defined]
        pods.decode_it("a")
        pods.decode_it("b")
        await asyncio.sleep(10)
        return pods

    pods = run_virtually(scene())
    firsts = [one.at - pods.begun_s for one in pods.received if one.kind is MilestoneKind.FIRST_TOKEN]  # type: ignore[attr-defined]
    assert firsts == [pytest.approx(1.5, abs=0.05), pytest.approx(2.5, abs=0.05)]


def test_a_stuck_transfer_does_not_end() -> None:
    """It is not counted as failed; the sequence waits until it is aborted, and leaves nothing."""

    async def scene() -> tuple[Pods, int]:
        pods = make_pods()
        await pods.prefilled("a")
        pods.prefill.keeps_transfers = True
        pods.decode_it("a")
        await asyncio.sleep(60)
        assert pods.decode.has("a-d")
        fetching = pods.decode.statistics().fetching
        pods.decode.abort("a-d")
        await asyncio.sleep(1)
        return pods, fetching

    pods, fetching = run_virtually(scene())
    assert (pods.received, fetching, pods.decode.wire.counts.failed) == ([], 1, 0)
    assert not pods.decode.has("a-d")
    assert pods.decode.statistics().kv_usage == pods.prefill.statistics().kv_usage == 0


def test_no_one_comes() -> None:
    """The lease ends and the blocks are free."""

    async def scene() -> VirtualPod:
        pods = make_pods()
        await pods.prefilled("a")
        await asyncio.sleep(LEASE_S - 1)
        assert pods.prefill.statistics().kv_usage > 0
        await asyncio.sleep(2)
        return pods.prefill

    pod = run_virtually(scene())
    assert pod.statistics().kv_usage == 0
    assert pod.expired == 1


def test_who_gives_up_leaves_nothing() -> None:
    """In the middle of a transfer: both engines are empty."""

    async def scene() -> Pods:
        pods = make_pods()
        await pods.prefilled("a")
        pods.decode_it("a")
        await asyncio.sleep(0.2)
        pods.decode.abort("a-d")
        await asyncio.sleep(1)
        return pods

    pods = run_virtually(scene())
    assert pods.prefill.engine.statistics().kv_usage == 0
    assert pods.decode.engine.statistics().kv_usage == 0
    assert pods.prefill.expired == 0


def test_a_lost_prefilling_engine_is_made_up_for() -> None:
    """What does not come is computed."""

    async def scene() -> Pods:
        pods = make_pods()
        await pods.prefilled("a")
        pods.prefill.lose()
        pods.decode_it("a")
        await asyncio.sleep(10)
        return pods

    pods = run_virtually(scene())
    assert pods.decode.engine.statistics().computed_prompt_tokens == PROMPT
    assert pods.received[-1].reason == "stop"


def test_blocks_are_taken_before_the_fetch() -> None:
    """Who has no room for a prompt does not fetch it: it waits until somebody ends."""

    async def scene() -> Pods:
        pods = make_pods()
        await pods.prefilled("a")
        await pods.prefilled("b", 50_000)
        pods.decode_it("b", 50_000, 2_000)
        pods.decode_it("a")
        pods.decode_it("c", 20_000)
        await asyncio.sleep(1)
        assert pods.decode.statistics().fetching == 2
        assert pods.decode.statistics().waiting == 3
        await asyncio.sleep(120)
        return pods

    pods = run_virtually(scene())
    assert sum(one.kind is MilestoneKind.FINISHED for one in pods.received) == 3
    pods.decode.engine.audit()
    pods.prefill.engine.audit()


SLOW_DOOR = Profile(step_base_s=1.0, prefill_tokens_per_s=1e9, step_per_sequence_s=0.0, step_per_kv_token_s=0.0)
SHARED = replace(SLOW_DOOR, request_s=0.25, request_step_s=0.125)


async def first_tokens(profile: Profile, arrivals: dict[str, float], answer: int = 1) -> dict[str, float]:
    """When each of some requests of one block has its first token, by name."""
    loop = asyncio.get_running_loop()
    pod, seen, ended = VirtualPod(profile, loop), dict[str, float](), asyncio.Event()

    def listen(milestone: Milestone) -> None:
        if milestone.kind is MilestoneKind.FIRST_TOKEN:
            seen[milestone.sequence_id] = milestone.at
        elif milestone.reason == "stop" and len(seen) == len(arrivals):
            ended.set()

    for name, at in arrivals.items():
        await asyncio.sleep(at - loop.time())
        pod.submit(Sequence(name, 16, answer), listen)
    await ended.wait()
    return seen


def test_an_api_server_takes_requests_one_by_one() -> None:
    """Three that come together reach the engine a quarter of a second apart: the last two share its second step."""
    seen = run_virtually(first_tokens(SHARED, {"a": 0.0, "b": 0.0, "c": 0.0}))
    assert seen == pytest.approx({"a": 1.25, "b": 2.25, "c": 2.25}, abs=1e-6)


def test_an_arrival_delays_the_step_in_flight() -> None:
    """The step that began at .25 s ends .125 s later for the one that came meanwhile."""
    seen = run_virtually(first_tokens(SHARED, {"a": 0.0, "b": 0.5}))
    assert seen == pytest.approx({"a": 1.375, "b": 2.375}, abs=1e-6)


def test_a_request_may_leave_before_the_engine_has_it() -> None:
    """Its abort reaches the API server only; the engine never sees it."""

    async def play() -> int:
        pod = VirtualPod(SHARED, asyncio.get_running_loop())
        pod.submit(Sequence("a", 16, 1), lambda _: None)
        pod.abort("a")
        await asyncio.sleep(10)
        return pod.statistics().steps

    assert run_virtually(play()) == 0


def test_what_never_fits_is_rejected_at_the_door() -> None:
    """With an API server too, at once and not when the engine would see it."""

    async def play() -> None:
        pod = VirtualPod(replace(SHARED, kv_capacity_tokens=64), asyncio.get_running_loop())
        with pytest.raises(ValueError, match="never fit"):
            pod.submit(Sequence("a", 100, 1), lambda _: None)

    run_virtually(play())
