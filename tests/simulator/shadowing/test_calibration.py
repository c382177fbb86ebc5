"""Engines that fit the metrics of recorded requests, and a prediction that comes of them, all in virtual time."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from routing.request import Api
from simulator.books import HISTOGRAMS
from simulator.engine_profile import slowed
from simulator.profile import Profile
from simulator.profiling.route_fit import Served, means_of, predicted
from simulator.prompt_text import prompt_text
from simulator.replay import Setting, play
from simulator.report import RoutingReport, report_on
from simulator.shadowing.calibration import calibrate, error_of, first_guess, load_of
from simulator.shadowing.prediction import conclude, describe, engines_needed, predict
from simulator.shadowing.readings import PACE, PREFILL, QUEUE, TTFT, Buckets, Seen, in_buckets, median_of
from simulator.shadowing.recording import Recording
from simulator.traces import Trace
from simulator.workload import LogNormal, Shape, generate

PODS = 3

TRUE = Profile(
    prefill_tokens_per_s=2_500,
    prefill_quadratic_tokens=12_000,
    step_base_s=0.04,
    step_per_sequence_s=0.001,
    kv_capacity_tokens=40_000,
    max_num_batched_tokens=1024,
    max_num_seqs=64,
)
"""What the pods are, and the shadow is not told."""

SHAPE = Shape(
    requests_per_s=2.2,
    turns=LogNormal(4, 9),
    pause_s=LogNormal(4, 9),
    system_tokens=LogNormal(300, 400),
    first_tokens=LogNormal(500, 1500),
    message_tokens=LogNormal(100, 300),
    document_tokens=LogNormal(900, 2500),
    document_share=0.3,
    answer_tokens=LogNormal(30, 80),
    max_prompt_tokens=6000,
    max_answer_tokens=150,
)


def traffic() -> Trace:
    return generate(SHAPE, 110, seed=3)


def buckets_of(name: str, values: Sequence[float]) -> Buckets:
    return in_buckets(values, tuple((bound, 0.0) for bound in (*HISTOGRAMS[name], math.inf)))


def seen_of(trace: Trace, profile: Profile) -> tuple[Seen, RoutingReport]:
    """What pods of this profile would report after the trace in turn, and the same as records have it."""
    replay = play(trace, Setting("round-robin", PODS, profile))
    load = load_of(trace, replay.records)
    times = [
        time
        for arrivals in load.engines
        for time in predicted(profile, [Served(one, 0.0, None) for one in arrivals], load.block_tokens)
    ]
    means, report = means_of(times), report_on(replay, profile)
    ttft = buckets_of(TTFT, [one.ttft_s or 0.0 for one in replay.records])
    cold = report.prompt_tokens - report.cached_tokens
    seen = Seen(
        requests=report.answered,
        prompt_tokens=report.prompt_tokens,
        output_tokens=report.output_tokens,
        hit_ratio=report.hit_ratio,
        ttft_p50_s=median_of(ttft),
        prefill_tokens_per_s=cold / ((means.prefill_s or 1.0) * report.answered),
        step_s=means.decode_s,
        kv_capacity_tokens=profile.kv_capacity_tokens,
        block_size=profile.block_size,
        ttft_s=fmean(one.ttft_s or 0.0 for one in replay.records),
        queue_s=means.queue_s,
        prefill_s=means.prefill_s,
        ttft=ttft,
        queue=buckets_of(QUEUE, [one.queue_s for one in times]),
        prefill=buckets_of(PREFILL, [one.prefill_s for one in times]),
        pace=buckets_of(PACE, [one.tpot_s for one in times if one.tpot_s is not None]),
    )
    return seen, report


def mirrored(trace: Trace) -> Recording:
    """The trace as a shadow receives it: as bodies."""
    recording = Recording()
    for number, one in enumerate(trace.arrivals):
        text = prompt_text(one.blocks, trace.block_tokens or 1, one.prompt_tokens, str(number))
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": one.output_tokens}
        recording.add(Api.CHAT, json.dumps(body).encode(), one.session, one.at_s)
    return recording


def test_the_switch_is_predicted_from_metrics_alone() -> None:
    """Engines of unknown speed and budget in turn, then Hearth's routing: hits and TTFT (p50) within 15 %."""
    trace = traffic()
    seen, present = seen_of(trace, TRUE)
    after = report_on(play(trace, Setting("warm", PODS, TRUE)), TRUE)
    assert after.ttft_s.p50 < 0.9 * present.ttft_s.p50, "nothing to predict"
    found = conclude(mirrored(trace), seen, engines=PODS, present="round-robin", base=Profile(), is_measured=False)
    assert found.present.hit_ratio == pytest.approx(present.hit_ratio, rel=0.05)
    assert found.present.ttft_p50_in_buckets_s == pytest.approx(seen.ttft_p50_s, rel=0.1)
    assert found.ours.hit_ratio == pytest.approx(after.hit_ratio, rel=0.15)
    assert found.ours.ttft_p50_s == pytest.approx(after.ttft_s.p50, rel=0.15)
    assert found.fewest.engines <= PODS
    table = describe(found, seen)
    assert "present, predicted" in table
    assert f"{seen.hit_ratio:.1%}" in table


def test_the_true_profile_has_no_error_and_a_wrong_one_has() -> None:
    """The error is what is minimized, so it must tell them apart."""
    trace = traffic()
    seen, _ = seen_of(trace, TRUE)
    load = load_of(trace, play(trace, Setting("round-robin", PODS, TRUE)).records)
    assert error_of(TRUE, load, seen) == pytest.approx(0.0, abs=1e-6)
    assert error_of(slowed(TRUE, 1.2), load, seen) > 0.2
    assert error_of(replace(TRUE, kv_capacity_tokens=64), load, seen) == math.inf


def test_a_measured_profile_is_slowed_as_one() -> None:
    """Its machine is busier than when it was measured; its proportions stay."""
    trace = traffic()
    seen, _ = seen_of(trace, slowed(TRUE, 1.3))
    load = load_of(trace, play(trace, Setting("round-robin", PODS, TRUE)).records)
    found = calibrate(TRUE, load, seen, is_measured=True)
    assert found.step_base_s / TRUE.step_base_s == pytest.approx(1.3, rel=0.03)
    assert TRUE.prefill_tokens_per_s / found.prefill_tokens_per_s == pytest.approx(1.3, rel=0.03)
    assert found.max_num_batched_tokens == TRUE.max_num_batched_tokens


def test_without_first_tokens_nothing_is_calibrated() -> None:
    """Then there are the counters alone, with a measured profile only its own speeds."""
    trace = traffic()
    load = load_of(trace, play(trace, Setting("round-robin", PODS, TRUE)).records)
    seen = Seen(kv_capacity_tokens=16_000, block_size=32, prefill_tokens_per_s=300)
    first = first_guess(seen, Profile(), is_measured=False)
    assert (first.kv_capacity_tokens, first.block_size, first.prefill_tokens_per_s) == (16_000, 32, 300)
    assert calibrate(first, load, seen, is_measured=False) is first
    assert first_guess(seen, Profile(), is_measured=True).prefill_tokens_per_s == Profile().prefill_tokens_per_s


def test_hearth_needs_no_more_engines_than_round_robin() -> None:
    """More of the prompts is cached, and the same first tokens take fewer engines."""
    trace = traffic()
    present = predict(trace, "round-robin", PODS, TRUE)
    ours = predict(trace, "warm", PODS, TRUE)
    assert ours.hit_ratio > present.hit_ratio
    assert ours.prefill_engine_s < present.prefill_engine_s
    assert engines_needed(trace, present, ours, TRUE).engines <= PODS
