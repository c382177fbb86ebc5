"""The golden run is as it was recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.comparing import NAMES, RECORDING, compare, read
from tests.golden.normal import differs, renamed
from tests.golden.play import play_all, tally


@pytest.mark.timeout(600)
def test_the_golden_run_is_as_recorded() -> None:
    """Bytes both ways, placements, ledger, rejections, usage, receipts, metrics and log, but for what was renamed."""
    found = play_all()
    assert tally(found)["answer"] > 400
    assert compare(read(RECORDING), found, json.loads(NAMES.read_text())) == []


def test_the_recording_is_small() -> None:
    """It stands in the repository."""
    assert RECORDING.stat().st_size < 500_000


def test_only_what_the_map_names_may_differ() -> None:
    """A renamed key or text is no difference, a lost or changed one is; digests count where nothing was renamed."""
    was: dict[str, Any] = {"kind": "line", "said": {"pod": "a", "sha256": "1", "reason": "busy", "old": 1}}
    names: dict[str, str | None] = {"pod": "engine", "busy": "overloaded", "old": None}
    assert renamed(was, names) == {"kind": "line", "said": {"engine": "a", "sha256": "1", "reason": "overloaded"}}
    assert not differs(was, was, {})
    assert not differs(was, {"kind": "line", "said": {"engine": "a", "sha256": "2", "reason": "overloaded"}}, names)
    assert differs(was, {"kind": "line", "said": {"engine": "b", "sha256": "1", "reason": "overloaded"}}, names)
    assert differs(was, was, names)
    more = was | {"said": was["said"] | {"new": 1}}
    assert differs(was, more, {})
    assert not differs(was, more, {"+new": ""})
    assert renamed({"busy": "busy"}, {"=busy": "full"}) == {"busy": "full"}
    assert differs(was, {"kind": "line", "said": was["said"] | {"sha256": "2"}}, {})
