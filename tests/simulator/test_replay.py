"""A replay runs the real spine and router in virtual time: the same for the same seed, nothing left behind."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from routing.rejection import Reason
from simulator.clock import run_virtually
from simulator.profile import Profile
from simulator.replay import Setting, Stage, engine_blocks, play
from simulator.report import report_on
from simulator.trace_formats import load_trace
from simulator.traces import Arrival, make_trace
from simulator.workload import TEAMS, generate


def setting(routing: str = "warm", kv_tokens: int = 1_000_000) -> Setting:
    return Setting(routing=routing, pods=3, profile=Profile(block_size=64, kv_capacity_tokens=kv_tokens))


def test_the_same_seed_gives_the_same_records() -> None:
    """Every time and every choice, to the last bit; so a difference between two runs is a difference of policies."""
    trace = generate(TEAMS, 120, seed=1)
    once, again = play(trace, setting()), play(trace, setting())
    assert once.records == again.records
    assert len({record.pod for record in once.records}) == 3
    assert [record.index for record in once.records] == list(range(120))


def test_one_request_on_an_idle_pod_takes_what_its_profile_says() -> None:
    """TTFT is chunks of prefill, each in a step; every further token is a step."""
    profile = Profile(block_size=64)
    trace = make_trace("one", [Arrival(0.0, 10_000, 3)], 512)
    record = play(trace, Setting("warm", 1, profile)).records[0]
    prefill_s = profile.prefill_s(0, 10_000) + 2 * profile.step_base_s
    assert record.ttft_s == pytest.approx(prefill_s, rel=1e-9)
    step_s = profile.step_base_s + profile.decode_s(1, 10_000)
    assert record.tpot_s == pytest.approx(step_s, rel=1e-3)
    assert (record.output_tokens, record.cached_tokens, record.failure) == (3, 0, "")


def test_a_second_turn_is_warm_where_the_first_was() -> None:
    """The router sends it there, the engine's cache has all full blocks, and the prediction says so before."""
    turns = [
        Arrival(0.0, 5120, 8, "a", ((0, 10),)),
        Arrival(60.0, 6144, 8, "a", ((0, 12),)),
        Arrival(61.0, 5120, 8, "b", ((100, 10),)),
    ]
    first, second, other = play(make_trace("turns", turns, 512), setting()).records
    assert second.pod == first.pod
    assert second.cached_tokens == 5120
    assert second.warm_surprise is not None
    assert abs(second.warm_surprise) <= 64
    assert other.cached_tokens == 0


def test_warm_routing_beats_the_others_on_generated_conversations() -> None:
    """More hits, and first tokens earlier at the median and in the tail, on the same arrivals."""
    trace = generate(TEAMS, 400, seed=0)
    warm, robin, least = (
        report_on(play(trace, setting(routing)), setting().profile)
        for routing in ("warm", "round-robin", "least-loaded")
    )
    assert warm.failed == robin.failed == least.failed == 0
    assert warm.hit_ratio > 1.5 * max(robin.hit_ratio, least.hit_ratio)
    for other in (robin, least):
        assert warm.ttft_s.p50 < other.ttft_s.p50
        assert warm.ttft_s.p95 < other.ttft_s.p95


def test_round_robin_takes_turns_whatever_the_sessions_are() -> None:
    """It is what others are measured by: warmth, load and sessions must not creep into it."""
    trace = generate(TEAMS, 300, seed=0)
    records = play(trace, setting("round-robin")).records
    for first, second, third in zip(records, records[1:], records[2:], strict=False):
        assert {first.pod, second.pod, third.pod} == {"pod-0", "pod-1", "pod-2"}


def test_a_prompt_that_never_fits_is_rejected_by_the_pod() -> None:
    """It counts as failed with the pod's words, and the others are served."""
    trace = make_trace("big", [Arrival(0.0, 5_000, 4), Arrival(0.0, 500, 4)], None)
    big, small = play(trace, setting(kv_tokens=4_096)).records
    assert "never fit" in big.failure
    assert big.ttft_s is None
    assert small.is_answered


def test_who_waits_beyond_the_deadline_has_failed() -> None:
    """No pod is tried after the deadline, and what the late requests held is given back."""
    trace = make_trace("jam", [Arrival(0.0, 100_000, 2) for _ in range(6)], None)
    records = play(trace, Setting("warm", 1, Profile(block_size=64), deadline_s=30.0)).records
    late = [record for record in records if not record.is_answered]
    assert {record.failure for record in late} == {Reason.POD_TIMEOUT.value}
    assert 0 < len(late) < 6


def test_the_ledger_and_the_engines_are_empty_at_the_end() -> None:
    """Nothing is charged any more and no block is held, also by requests whose client has gone."""

    async def leave_early() -> Stage:
        stage = Stage(setting(), 512, None)
        async with asyncio.TaskGroup() as group:
            # Those whose clients will go would be answered for minutes.
            arrivals = [Arrival(0.0, 9_000, 50 if index % 2 else 50_000) for index in range(9)]
            tasks = [group.create_task(stage.run_request(index, arrival)) for index, arrival in enumerate(arrivals)]
            await asyncio.sleep(1.0)
            for task in tasks[::2]:
                task.cancel()
        await asyncio.sleep(5.0)
        return stage

    stage = run_virtually(leave_early())
    assert stage.replicas[0].router.ledger.is_empty()
    assert sum(record.is_answered for record in stage.records) == 4
    assert len(stage.records) == 9
    for pod in stage.pods.values():
        assert pod.engine.statistics().running == pod.engine.statistics().waiting == 0
        assert pod.engine.statistics().kv_usage == 0
        pod.engine.audit()


@pytest.mark.parametrize(
    ("trace_block", "engine_block", "blocks"),
    [(64, 16, (4, 5, 6, 7, 8, 9, 10, 11, 80, 81, 82, 83)), (64, 64, (1, 2, 20)), (16, 32, (2,)), (16, 48, (20,))],
)
def test_a_trace_block_becomes_engine_blocks(trace_block: int, engine_block: int, blocks: tuple[int, ...]) -> None:
    """Smaller ones share what the larger shares; a larger one is the chain up to its end."""
    assert engine_blocks(Arrival(0.0, 200, 1, None, ((1, 2), (20, 1))), trace_block, engine_block) == blocks


def test_blocks_that_do_not_fit_are_named() -> None:
    """Neither size a multiple of the other: no honest translation."""
    with pytest.raises(ValueError, match="blocks of 48 tokens do not fit the trace's blocks of 64"):
        play(make_trace("odd", [Arrival(0.0, 200, 1)], 64), Setting(profile=Profile(block_size=48)))


def test_mooncake_in_virtual_time() -> None:
    """On the real trace warm routing has more than twice round robin's hits, earlier first tokens, and no failure."""
    path = Path(os.environ.get("TRACES", "../shared/traces")) / "mooncake_conversation_trace.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no {path}: TRACES=FOLDER says where the public traces are")
    trace, profile = load_trace(path).first(2_000), Profile(block_size=64)
    warm, robin = (report_on(play(trace, Setting(routing, 8, profile)), profile) for routing in ("warm", "round-robin"))
    assert warm.failed == robin.failed == 0
    assert warm.hit_ratio > 2 * robin.hit_ratio
    assert warm.ttft_s.p50 < robin.ttft_s.p50
    assert warm.ttft_s.p95 < robin.ttft_s.p95 / 2
    assert warm.foresight is not None
    assert warm.foresight.warm_error < 0.05


def test_gateways_that_report_each_other_find_what_one_finds() -> None:
    """Four of them: alone each knows a quarter of what is warm; with news nearly all of it."""
    trace = generate(TEAMS, 300, seed=2)
    one, reported, alone = (
        report_on(play(trace, replace(setting(), replicas=replicas, sync_delay_s=sync_delay_s)), setting().profile)
        for replicas, sync_delay_s in ((1, None), (4, 0.02), (4, None))
    )
    assert one.failed == reported.failed == alone.failed == 0
    assert reported.hit_ratio > 0.95 * one.hit_ratio
    assert alone.hit_ratio < 0.9 * one.hit_ratio


def test_a_seed_moves_arrivals_and_keeps_the_order_of_a_session() -> None:
    """Each by a draw of its own, up to what was asked; the same seed the same way."""
    trace = make_trace("bursts", [Arrival(3.0 * (index // 4), 100, 1, str(index % 2)) for index in range(40)], None)
    moved = trace.jittered(0.2, seed=1)
    assert moved == trace.jittered(0.2, seed=1)
    assert moved != trace.jittered(0.2, seed=2)
    assert trace.jittered(0.0, seed=1) is trace
    assert len({arrival.at_s for arrival in moved.arrivals}) > 20
    shifts = [later.at_s - before.at_s for later, before in zip(moved.arrivals, trace.arrivals, strict=True)]
    assert -0.2 <= min(shifts) < max(shifts) <= 0.2
    for session in ("0", "1"):
        times = [arrival.at_s for arrival in moved.arrivals if arrival.session == session]
        assert times == sorted(times)


def test_known_caches_bring_hits_where_the_index_has_to_guess() -> None:
    """Nothing is evicted from large caches: every prediction comes true. In smaller ones knowing them finds more."""
    trace = generate(TEAMS, 300, seed=1)
    roomy, own = replace(setting(), knows_caches=True), setting(kv_tokens=250_000)
    assert all(record.predicted_cached_input_tokens == record.cached_tokens for record in play(trace, roomy).records)
    without, with_them = (
        sum(record.cached_tokens or 0 for record in play(trace, one).records)
        for one in (own, replace(own, knows_caches=True))
    )
    assert with_them > without
