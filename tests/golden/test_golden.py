"""The golden run is as it was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.comparing import RECORDING, compare, read
from tests.golden.play import play_all, tally


@pytest.mark.timeout(600)
def test_the_golden_run_is_as_recorded() -> None:
    """Bytes both ways, placements, ledger, rejections, usage, receipts, metrics and log."""
    found = play_all()
    assert tally(found)["answer"] > 400
    assert compare(read(RECORDING), found) == []


def test_the_recording_is_small() -> None:
    """It stands in the repository."""
    assert RECORDING.stat().st_size < 500_000


def test_a_changed_or_lost_record_is_a_difference() -> None:
    """Digests count as well."""
    line: dict[str, Any] = {"shell": "http", "kind": "line", "said": {"pod": "a", "sha256": "1"}}
    assert compare([line], [line]) == []
    assert len(compare([line], [line | {"said": {"pod": "b", "sha256": "1"}}])) == 1
    assert len(compare([line], [line | {"said": {"pod": "a", "sha256": "2"}}])) == 1
    assert len(compare([line, line], [line])) == 1
