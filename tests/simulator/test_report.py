"""Every figure of a report, worked out by hand."""

from pathlib import Path

import msgspec
import pytest

from simulator.profile import Profile
from simulator.records import Record, Replay
from simulator.report import LOAD_STEPS, Report, idle_ttft_s, load_of, report_on

PROFILE = Profile(
    prefill_tokens_per_s=1000.0, prefill_quadratic_tokens=1e12, step_base_s=0.5, max_num_batched_tokens=1000
)
"""A second for a thousand tokens, half a second a step."""


def record(index: int, **changed: object) -> Record:
    reported = {
        "arrived_s": 0.0,
        "prompt_tokens": 1000,
        "output_tokens": 5,
        "pod": "a",
        "cached_tokens": 0,
        "ttft_s": 2.0,
        "duration_s": 4.0,
    }
    return Record(index=index, **{**reported, **changed})  # type: ignore[arg-type]


def replay(*records: Record) -> Replay:
    return Replay("warm", "by hand", ("a", "b"), records, length_s=10.0, took_s=0.1)


def test_hits_are_weighted_by_tokens_and_failures_left_out() -> None:
    """A failed request had no prompt tokens and no hits; its reason is counted."""
    report = report_on(
        replay(
            record(0), record(1, prompt_tokens=3000, cached_tokens=2000), record(2, failure="pod_timeout", ttft_s=None)
        ),
        PROFILE,
    )
    assert report.hit_ratio == pytest.approx(0.5)
    assert (report.requests, report.answered, report.failed) == (3, 2, 1)
    assert report.failures == {"pod_timeout": 1}
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (4000, 2000, 10)


def test_an_answer_without_a_first_token_has_failed() -> None:
    """Nobody was told an error, and yet nothing came."""
    report = report_on(replay(record(0, ttft_s=None)), PROFILE)
    assert report.failures == {"unfinished": 1}
    assert report.hit_ratio == 0.0
    assert report.imbalance == 1.0


def test_times_to_first_and_further_tokens() -> None:
    """TPOT leaves the first token out, and answers of one token have none."""
    report = report_on(replay(record(0, ttft_s=1.0, duration_s=3.0), record(1, ttft_s=3.0, output_tokens=1)), PROFILE)
    assert (report.ttft_s.mean, report.ttft_s.p50, report.ttft_s.p99) == (2.0, 3.0, 3.0)
    assert report.tpot_s.mean == pytest.approx(0.5)


def test_wait_is_what_an_idle_pod_would_not_have_needed() -> None:
    """1,500 cold tokens are two chunks in two steps: 1.5 s and twice 0.5 s."""
    one = record(0, prompt_tokens=2000, cached_tokens=500, ttft_s=4.0)
    assert idle_ttft_s(one, PROFILE) == pytest.approx(2.5)
    assert report_on(replay(one), PROFILE).wait_s.mean == pytest.approx(1.5)
    assert report_on(replay(record(0, ttft_s=0.1)), PROFILE).wait_s.mean == 0.0


def test_imbalance_is_the_busiest_pod_by_the_mean() -> None:
    """Three seconds of prefill on one pod, one on the other: 1.5 times the mean of two."""
    report = report_on(replay(record(0, prompt_tokens=3000), record(1, pod="b")), PROFILE)
    assert report.work_s == pytest.approx({"a": 3.0, "b": 1.0})
    assert report.imbalance == pytest.approx(1.5)
    assert report.requests_by_pod == {"a": 1, "b": 1}


def test_foresight_compares_predictions_with_what_came() -> None:
    """Too much and too little both count as error; only too much is excess."""
    records = [
        record(0, predicted_cached_input_tokens=300, cached_tokens=200, predicted_ttft_s=1.5),
        record(1, predicted_cached_input_tokens=100, cached_tokens=200, predicted_ttft_s=2.5),
    ]
    foresight = report_on(replay(*records), PROFILE).foresight
    assert foresight is not None
    assert foresight.warm_error == pytest.approx(0.1)
    assert foresight.warm_excess == pytest.approx(0.05)
    assert foresight.ttft_error_s == pytest.approx(0.5)
    assert report_on(replay(record(0)), PROFILE).foresight is None


def test_load_is_what_a_pod_owed_over_time() -> None:
    """A request's prefill seconds stand from its arrival to its first token, in proportion to the time they stood."""
    load = load_of(
        replay(record(0, arrived_s=1.03, ttft_s=2.0), record(1, arrived_s=2.0, ttft_s=3.01, pod="b")), PROFILE
    )
    assert load.step_s == pytest.approx(10.0 / LOAD_STEPS)
    assert sum(load.owed_s["a"]) * load.step_s == pytest.approx(2.0)
    assert sum(load.owed_s["b"]) * load.step_s == pytest.approx(3.01)
    assert load.owed_s["a"][0] == 0.0
    assert load.owed_s["a"][12] == pytest.approx(0.64)
    assert load.owed_s["a"][24] == pytest.approx(1.0)


def test_a_report_is_written_as_json(tmp_path: Path) -> None:
    """All figures under their names."""
    report = Report("by hand", {"pods": 2}, (report_on(replay(record(0)), PROFILE),))
    report.write(tmp_path / "report.json")
    reported = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert reported["trace"] == "by hand"
    assert reported["setup"] == {"pods": 2}
    assert reported["routings"][0]["ttft_s"]["p95"] == 2.0
    assert len(reported["routings"][0]["load"]["owed_s"]["a"]) == LOAD_STEPS
