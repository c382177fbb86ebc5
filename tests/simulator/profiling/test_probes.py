"""Measuring a simulated pod over HTTP: the sizes are exact, the steps near what the pod was made with."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from simulator.engine_profile import MEASURED, load_engine_profile
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.profiling.command import main, make_parser
from simulator.profiling.fitting import fit
from simulator.profiling.pod_client import PodError, connected, labels_of, sums_of
from simulator.profiling.probes import Probe
from tests.simulator.profiling.test_fitting import SEEN

POD = Profile(
    step_table=((1, 0.004), (16, 0.006), (128, 0.020), (256, 0.040)),
    step_per_sequence_s=0.000_3,
    step_per_kv_token_s=0.0,
    prefill_tokens_per_s=128 / 0.020,
    max_num_batched_tokens=256,
    max_num_seqs=6,
    kv_capacity_tokens=4_096,
    block_size=32,
    request_s=0.002,
)


async def test_a_pod_is_measured() -> None:
    """Sizes and prefix cache are found; a step is predicted within a quarter on a machine that does other things."""
    lines: list[str] = []
    async with SimulatedPod(Options(profile=POD, max_model_len=512)) as pod, connected(pod.url) as client:
        seen = await Probe(client, lines.append).measure()
    assert seen.shape.max_num_seqs == 6
    assert seen.shape.block_size == 32
    assert seen.shape.caches_prefixes
    assert seen.shape.max_num_batched_tokens == 256
    assert {one.sequences for one in seen.decode} >= {1, 2, 4, 6}
    assert seen.intrusions
    assert lines
    fitted = fit(seen).profile
    assert fitted.step_s([(0, 200)], 0, 0) == pytest.approx(POD.step_s([(0, 200)], 0, 0), rel=0.25)


async def test_time_runs_out_and_a_fit_is_left() -> None:
    """With no time for the later experiments the earlier ones are kept."""
    async with SimulatedPod(Options(profile=POD, max_model_len=512)) as pod, connected(pod.url) as client:
        seen = await Probe(client, lambda _: None, limit_s=0.0).measure(256)
    assert seen.idle == ()
    assert seen.intrusions == ()


async def test_an_address_without_a_pod_is_an_error() -> None:
    """Nothing listens, or the model is not served."""
    with pytest.raises(PodError, match="models"):
        async with connected("http://127.0.0.1:9"):
            pass
    async with SimulatedPod() as pod:
        with pytest.raises(PodError, match="serves no other"):
            async with connected(pod.url, "other"):
                pass


def test_series_are_summed_over_labels() -> None:
    """Comments, and lines that are no number, are passed over."""
    text = '# HELP a b\na{x="1"} 2\na{x="2"} 3.5\nb 1\nc oops\n'
    assert sums_of(text) == {"a": 5.5, "b": 1.0}
    assert labels_of('vllm:cache_config_info{block_size="16",dtype="auto"} 1.0') == {
        "block_size": "16",
        "dtype": "auto",
    }


def test_earlier_observations_are_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--seen` needs no pod; the file says what, where and when."""
    (tmp_path / "seen.json").write_bytes(SEEN.to_json())
    out = tmp_path / "engine.yaml"
    assert main(["--seen", str(tmp_path / "seen.json"), "--hardware", "one core", "--out", str(out)]) == 0
    profile = load_engine_profile(out)
    assert (profile.source, profile.hardware) == (MEASURED, "one core")
    assert profile.date
    assert "tokens/s prefill" in capsys.readouterr().out
    assert main(["--seen", str(tmp_path / "seen.json")]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["engine"]["max_num_seqs"] == 16


def test_what_cannot_be_measured_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit status 1."""
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert main(["--seen", str(tmp_path / "absent.json")]) == 1
    assert capsys.readouterr().err.count("hearth:") == 2
    with pytest.raises(SystemExit):
        make_parser().parse_args([])
