"""`hearth simulate` from its command line to its files."""

from pathlib import Path

import msgspec
import pytest

from simulator.command import choose_trace, main, read_wanted
from simulator.computed import FOLDER
from simulator.engine_profile import load_engine_profile
from simulator.trace_formats import TraceFault


def test_a_generated_trace_is_played_with_every_routing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table on the terminal, report and picture in the folder, exit status 0."""
    assert main(["--trace", "generated:teams", "--limit", "60", "--pods", "2", "--out", str(tmp_path)]) == 0
    reported = capsys.readouterr().out
    for name in ("round-robin", "least-loaded", "warm"):
        assert f"\n{name}" in reported
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert [one["routing"] for one in report["routings"]] == ["round-robin", "least-loaded", "warm"]
    assert [one["answered"] for one in report["routings"]] == [60, 60, 60]
    assert report["setup"]["pods"] == 2
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_options_reach_the_replay(tmp_path: Path) -> None:
    """Routings in the order given, each once, and speed presses the arrivals together."""
    base = ["--trace", "generated", "--limit", "40", "--out", str(tmp_path), "--routing", "warm,least-loaded,warm"]
    assert (
        main([*base, "--arrival-rate", "2", "--prefill-rate", "24000", "--step-ms", "6", "--kv-tokens", "320000"]) == 0
    )
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert [one["routing"] for one in report["routings"]] == ["warm", "least-loaded"]
    assert report["setup"]["prefill_tokens_per_s"] == 24_000
    assert report["setup"]["step_base_s"] == pytest.approx(0.006)
    assert report["setup"]["kv_capacity_tokens"] == 320_000
    plain = choose_trace("generated", 40, 0)
    assert report["setup"]["trace_length_s"] == pytest.approx(plain.length_s / 2, abs=0.01)


def test_policies_are_compared_over_seeds_and_against_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others' policies by name, medians of the seeds, and what no routing can exceed."""
    base = ["--trace", "generated:teams", "--limit", "40", "--pods", "2", "--out", str(tmp_path)]
    assert main([*base, "--routing", "lmetric,warm", "--seeds", "3"]) == 0
    reported = " ".join(capsys.readouterr().out.split())
    assert "Medians of 3 runs" in reported
    assert "No routing could find more than" in reported
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert report["seeds"] == 3
    assert max(one["hit_ratio"] for one in report["routings"]) <= report["clairvoyant_hit_ratio"] <= 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--trace", "generated", "--routing", "warm,best"],
            "no routing `best`: warm, round-robin, least-loaded, as-recorded",
        ),
        (["--trace", "generated", "--pods", "0"], "must be above 0"),
        (["--trace", "generated", "--arrival-rate", "-1"], "must be above 0"),
        (["--trace", "generated", "--kv-tokens", "3"], "kv_capacity_tokens: must hold at least one block"),
        (["--trace", "generated", "--replicas", "0"], "must be above 0"),
        (["--trace", "generated", "--http", "--compare"], "the gateway's own routings"),
        ([], "--trace"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is played, with what is wrong in its words."""
    with pytest.raises(SystemExit) as ended:
        read_wanted(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says where traces come from."""
    assert main(["--trace", str(tmp_path / "none.jsonl")]) == 1
    assert "github.com" in capsys.readouterr().err


def test_an_unknown_shape_names_the_known_ones() -> None:
    """`generated:` alone is the usual one."""
    with pytest.raises(TraceFault, match="no shape `spiral`: chat, agent, teams"):
        choose_trace("generated:spiral", None, 0)
    assert choose_trace("generated:", 10, 0).arrivals == choose_trace("generated:chat", 10, 0).arrivals


def test_prefill_and_decode_are_split(tmp_path: Path) -> None:
    """Fixed, chosen per request, and with roles that follow: everybody is answered."""
    base = ["--trace", "generated:teams", "--limit", "40", "--pods", "4", "--out", str(tmp_path), "--routing", "warm"]
    for flags in (["--prefill", "0"], ["--prefill", "2", "--pd-always"], ["--prefill", "1", "--dynamic-roles"]):
        assert main([*base, *flags]) == 0
        report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
        assert [one["answered"] for one in report["routings"]] == [40]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dynamic-roles"], "want --prefill"),
        (["--prefill", "8"], "from 0 to 7"),
        (["--prefill", "0", "--dynamic-roles"], "from 1 to 7"),
        (["--prefill", "1", "--http"], "virtual time"),
    ],
)
def test_splits_that_cannot_be_are_rejected(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line, before anything is played."""
    with pytest.raises(SystemExit):
        read_wanted(["--trace", "generated", *flags])
    assert words in capsys.readouterr().err


def test_an_engine_profile_is_played_with_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its speeds and sizes reach the engines, and a computed one says that nobody has verified it."""
    profile = str(FOLDER / "h200-qwen3.6-27b.yaml")
    base = ["--trace", "generated:teams", "--limit", "40", "--pods", "2", "--out", str(tmp_path), "--routing", "warm"]
    assert main([*base, "--profile", profile, "--block-tokens", "16"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Engine profile computed for Qwen3.6-27B, FP8 weights, BF16 KV on H200: unverified on this hardware." in out
    assert "warm: TTFT p50" in out
    engine = load_engine_profile(Path(profile)).engine
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert report["setup"]["prefill_tokens_per_s"] == engine.prefill_tokens_per_s
    assert report["setup"]["block_size"] == 16
    assert read_wanted([*base, "--profile", profile]).profile == engine


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "absent.yaml"], "absent.yaml"),
        (["--profile", str(FOLDER / "h200-qwen3.6-27b.yaml"), "--step-ms", "3"], "stand in the engine profile"),
        (["--hardware", "H100"], "--hardware wants --profile"),
    ],
)
def test_a_contradicting_profile_is_rejected(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line."""
    with pytest.raises(SystemExit):
        read_wanted(["--trace", "generated", *arguments])
    assert words in capsys.readouterr().err
