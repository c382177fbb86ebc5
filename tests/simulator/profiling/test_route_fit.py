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
from simulator.profile import Profile
from simulator.profiling.command import main
from simulator.profiling.fitting import NotEnoughSeenError
from simulator.profiling.route_fit import Served, fit_routes, predicted, served_of
from simulator.route_log import RouteRow

TRUE = Profile(
    prefill_tokens_per_s=5_000.0,
    prefill_quadratic_tokens=20_000.0,
    step_base_s=0.02,
    step_per_sequence_s=0.001,
    step_per_kv_token_s=1e-7,
    request_s=0.01,
)


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
            replace(one, ttft_s=ttft, tpot_s=tpot)
            for one, (ttft, tpot) in zip(served, predicted(TRUE, served), strict=True)
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
