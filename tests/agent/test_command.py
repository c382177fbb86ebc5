"""`hearth agent` from its command line: faults are named, and status 2 says so."""

import tomllib

import pytest

from agent.command import main
from tests.sources import ROOT


def test_every_fault_of_the_flags_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags and variables are checked together, before anything is opened."""
    monkeypatch.setenv("HEARTH_AGENT_TTL", "0")
    assert main(["--ports", "x", "--redis", "redis://127.0.0.1:9"]) == 2
    stated = capsys.readouterr().err
    assert "hearth: --ports" in stated
    assert "hearth: HEARTH_AGENT_TTL" in stated


def test_the_entry_points_name_what_is_there() -> None:
    """`hearth agent` is found by name; a rename must not lose it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert declared["hearth.commands"]["agent"] == f"{main.__module__}:{main.__name__}"
