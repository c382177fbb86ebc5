"""The roll between two versions: which checkout a gateway starts from, and what happens without the other one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.overhead.paired import has_commit
from tests.chaos import rolling
from tests.chaos.__main__ import main
from tests.chaos.cast import Cast, Gateway
from tests.chaos.programs import Program


def test_without_the_other_commit_the_roll_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a shallow clone; the reason and the way out are printed."""
    absent = "0" * 40
    monkeypatch.setattr("sys.argv", ["chaos", "--upgrade", absent])
    assert not has_commit(absent)
    assert main() == 0
    assert "git fetch --unshallow" in capsys.readouterr().out


def test_each_gateway_goes_up_and_then_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, so that both versions run beside each other."""
    gateways = [Gateway(Program(name, (), "", "", tmp_path / name), "", "") for name in "ab"]
    rolled: list[tuple[str, str]] = []

    async def roll(_cast: Cast, _doing: object, gateway: Gateway) -> None:
        rolled.append((gateway.name, gateway.program.root.name))

    monkeypatch.setattr(rolling, "_roll_gateway", roll)
    monkeypatch.setattr(rolling, "BESIDE_S", 0.0)
    cast = Cast([], [], gateways, [], None, None, None, None)  # type: ignore[arg-type]
    asyncio.run(rolling.upgrade(cast, None, before=Path("before"), now=Path("now")))  # type: ignore[arg-type]
    assert rolled == [("a", "now"), ("b", "now"), ("a", "before"), ("b", "before")]
