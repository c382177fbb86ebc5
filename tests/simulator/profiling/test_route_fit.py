"""Speeds from a route log: recorded times of a known engine give its speeds back."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from simulator.computed import FOLDER
from simulator.engine_profile import MEASURED, load_engine_profile
from simulator.link import Link
from simulator.profile import Profile
from simulator.profiling.command import main
from simulator.profiling.fitting import NotEnoughSeenError
from simulator.profiling.histograms import EngineTimes
from simulator.profiling.route_fit import Served, fit_routes, means_of, predicted, served_of
from simulator.route_log import RouteRow

TRUE = Profile(
    prefill_tokens_per_s=5_000.0,
    prefill_quadratic_tokens=20_000.0,
    step_base_s=0.02,
    step_per_sequence_s=0.001,
    step_per_kv_token_s=1e-7,
    request_s=0.01,
)


SCRAPE = """\
vllm:cache_config_info{block_size="32",num_gpu_blocks="1001"} 1.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.5
vllm:request_queue_time_seconds_count{engine="0"} 60.0
vllm:request_prefill_time_seconds_sum{engine="0"} 12.0
vllm:request_prefill_time_seconds_count{engine="0"} 60.0
vllm:inter_token_latency_seconds_sum{engine="0"} 60.0
vllm:inter_token_latency_seconds_count{engine="0"} 3000.0
vllm:nixl_xfer_time_seconds_sum{engine="0"} 2.0
vllm:nixl_xfer_time_seconds_count{engine="0"} 10.0
vllm:nixl_post_time_seconds_sum{engine="0"} 0.01
vllm:nixl_bytes_transferred_sum{engine="0"} 4000000.0
vllm:prompt_tokens_by_source_total{source="local_compute"} 50000.0
vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 4000.0
"""


def row(number: int, engine: str, draw: Random, model: str = "m") -> RouteRow:
    tokens = draw.randint(50, 4_000)
    blocks = b64encode(draw.randbytes(8 * 40)).decode()
    return RouteRow("r", 0.4 * number, model, tokens, draw.randint(1, 120), tokens * 4, blocks, engine, None, 1.0, 2.0)


def recorded() -> list[list[Served]]:
    """What two such engines would have been recorded with."""
    draw = Random(1)
    engines = served_of(row(number, f"e{number % 2}", draw) for number in range(120))
    return [
        [
            replace(one, ttft_s=times.ttft_s, tpot_s=times.tpot_s)
            for one, times in zip(served, predicted(TRUE, served), strict=True)
        ]
        for served in engines
    ]


def test_rows_are_parted_by_engine() -> None:
    """Other models, and rows without times, are left out; the order is that of arrival."""
    draw = Random(0)
    rows = [row(number, f"e{number % 2}", draw) for number in range(6)]
    rows.append(row(6, "e0", draw, model="other"))
    rows[4].ttft_s = None
    engines = served_of(reversed(rows))
    assert [len(served) for served in engines] == [2, 3]
    assert [one.arrival.at_s for one in engines[1]] == pytest.approx([0.4, 1.2, 2.0])


def test_the_speeds_come_back() -> None:
    """From the defaults, to a few percent of every recorded time."""
    fitted = fit_routes(Profile(), recorded())
    assert max(fitted.spread.values()) < 0.05
    assert fitted.profile.prefill_tokens_per_s == pytest.approx(TRUE.prefill_tokens_per_s, rel=0.2)
    assert fitted.profile.step_base_s == pytest.approx(TRUE.step_base_s, rel=0.2)


def test_a_log_is_fitted_on_the_command_line(tmp_path: Path) -> None:
    """The sizes are those of the profile to start from; a log that is none is said."""
    rows = [msgspec.to_builtins(row(number, "e", Random(number))) | {"schema": 2} for number in range(60)]
    log, out = tmp_path / "routes.jsonl", tmp_path / "engine.yaml"
    log.write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    base = str(FOLDER / "h100-qwen3.6-27b.yaml")
    words = ["--route-log", str(log), "--base", base, "--block-tokens", "16", "--hardware", "H100", "--out", str(out)]
    assert main(words) == 0
    profile = load_engine_profile(out)
    assert (profile.source, profile.hardware, profile.engine.block_size) == (MEASURED, "H100", 16)
    assert set(profile.spread) == {"ttft", "tpot"}
    assert main(["--route-log", base]) == 1


def test_a_short_log_is_rejected() -> None:
    """With how much is wanted."""
    with pytest.raises(NotEnoughSeenError, match="50 answered"):
        fit_routes(Profile(), [served[:10] for served in recorded()])


def test_the_engines_histograms_part_engine_and_way() -> None:
    """Recorded first tokens that are 40 ms late by what is before the engine do not slow the fitted engine."""
    engines = [[replace(one, ttft_s=one.ttft_s + 0.04) for one in served] for served in recorded()]
    means = means_of([times for served in recorded() for times in predicted(TRUE, served)])
    fitted = fit_routes(Profile(), engines, means)
    assert fitted.profile.request_s == pytest.approx(TRUE.request_s + 0.04, rel=0.25)
    for tokens in (500, 2_000, 4_000):
        predicted_s = fitted.profile.step_s([(0, tokens)], 0, 0)
        assert predicted_s == pytest.approx(TRUE.step_s([(0, tokens)], 0, 0), rel=0.1)
    assert fitted.spread["engine"] < 0.05
    assert EngineTimes().is_empty


def test_scrapes_of_the_engine_come_with_the_log(tmp_path: Path) -> None:
    """Block size and KV capacity are the engine's then, and transfers that it counted give the link."""
    rows = [msgspec.to_builtins(row(number, "e", Random(number))) | {"schema": 2} for number in range(60)]
    log, out, after = tmp_path / "routes.jsonl", tmp_path / "engine.yaml", tmp_path / "after.txt"
    log.write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    after.write_text(SCRAPE, encoding="utf-8")
    assert main(["--route-log", str(log), "--metrics", str(after), "--out", str(out)]) == 0
    profile = load_engine_profile(out)
    assert (profile.engine.block_size, profile.engine.kv_capacity_tokens) == (32, 32_000)
    assert set(profile.spread) == {"ttft", "tpot", "engine"}
    assert profile.link == Link(1_000, 2e6, 0.001)
    words = ["--route-log", str(log), "--metrics", str(after), "--metrics-before", str(after), str(after)]
    assert main(words) == 1
