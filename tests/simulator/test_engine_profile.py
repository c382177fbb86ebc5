"""Engine profiles as files: read back as written, faults named by key, spread by what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from simulator.engine_profile import (
    COMPUTED,
    MEASURED,
    UNVERIFIED_SPREAD,
    EngineProfile,
    ProfileError,
    dump_engine_profile,
    load_engine_profile,
    slowed,
)
from simulator.link import Link
from simulator.profile import Profile

ENGINE = Profile(step_table=((1, 0.01), (64, 0.02)), request_s=0.004, block_size=32, max_num_seqs=8)

MINE = EngineProfile(
    engine=ENGINE,
    source=MEASURED,
    hardware="one core",
    model="small",
    date="2026-11-24",
    versions={"vllm": "0.32.0"},
    spread={"prefill": 0.02, "decode": 0.05},
    notes=("by hand",),
    link=Link(1_000, 2e6, 0.001),
)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every field comes back."""
    path = tmp_path / "engine.yaml"
    path.write_text(dump_engine_profile(MINE), encoding="utf-8")
    assert load_engine_profile(path) == MINE


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"engine_profile": 2}, "engine_profile"),
        ({"source": "guessed"}, "source"),
        ({"colour": "red"}, "colour"),
        ({"engine": {"wheels": 4}}, "engine.wheels"),
        ({"engine": {"block_size": "many"}}, "engine.block_size"),
        ({"engine": {"block_size": 0}}, "engine.block_size"),
        ({"engine": {"step_table": [[4, 0.1], [2, 0.2]]}}, "engine.step_table"),
        ({"engine": 7}, "engine"),
        ({"spread": {"prefill": "wide"}}, "spread.prefill"),
        ({"versions": 3}, "versions"),
    ],
    ids=str,
)
def test_a_fault_is_named_by_its_key(change: dict[str, object], named: str, tmp_path: Path) -> None:
    """With the file before it."""
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(dump_engine_profile(MINE)) | change), encoding="utf-8")
    with pytest.raises(ProfileError, match=f"engine.yaml: {named}"):
        load_engine_profile(path)


@pytest.mark.parametrize("missing", ["engine", "source", "hardware"])
def test_what_is_missing_is_named(missing: str, tmp_path: Path) -> None:
    """Speeds, source and hardware are wanted; the rest may be left out."""
    document = yaml.safe_load(dump_engine_profile(MINE))
    del document[missing]
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(ProfileError, match=f"{missing}: is missing"):
        load_engine_profile(path)


def test_no_file_and_no_yaml_are_faults(tmp_path: Path) -> None:
    """Neither ends the program with a trace."""
    (tmp_path / "broken.yaml").write_text("a: [", encoding="utf-8")
    for name in ("absent.yaml", "broken.yaml"):
        with pytest.raises(ProfileError, match=name):
            load_engine_profile(tmp_path / name)


def test_other_hardware_widens_the_spread() -> None:
    """On its own hardware the residuals of the fit, elsewhere at least half."""
    assert MINE.is_verified_on(None)
    assert MINE.is_verified_on("one core")
    assert not MINE.is_verified_on("H100")
    assert MINE.spread_on(None) == 0.05
    assert MINE.spread_on("H100") == UNVERIFIED_SPREAD
    shaky = replace(MINE, spread={"decode": 0.4})
    assert shaky.spread_on("H100") == 0.8
    assert replace(shaky, source=COMPUTED).spread_on(None) == UNVERIFIED_SPREAD


def test_a_slow_engine_takes_longer_for_everything() -> None:
    """Steps, attention and requests, by the same factor; sizes stay."""
    slow = slowed(ENGINE, 2.0)
    assert slow.step_s([(100, 40)], 3, 900) == pytest.approx(2 * ENGINE.step_s([(100, 40)], 3, 900))
    assert slow.prefill_s(10, 100) == pytest.approx(2 * ENGINE.prefill_s(10, 100))
    assert slow.request_handling_s(10) == pytest.approx(2 * ENGINE.request_handling_s(10))
    assert slow.kv_capacity_tokens == ENGINE.kv_capacity_tokens


def test_faults_of_the_link_are_named(tmp_path: Path) -> None:
    """A key that is none, and a size that cannot be."""
    document = yaml.safe_load(dump_engine_profile(MINE))
    for link, message in (({"speed": 1}, "link.speed: no such key"), ({"bytes_per_s": 0}, "must be > 0")):
        path = tmp_path / "engine.yaml"
        path.write_text(yaml.safe_dump(document | {"link": link}), encoding="utf-8")
        with pytest.raises(ProfileError, match=message):
            load_engine_profile(path)
