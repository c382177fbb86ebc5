"""Facts are values, and every one may be missing."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from diagnosis.facts import (
    BuildFacts,
    EngineFlags,
    EngineWindow,
    GatewayLoad,
    GatewayView,
    HardwareFacts,
    NicPort,
    SpeculationWindow,
    TransferWindow,
)

TIMED = (BuildFacts, EngineFlags, EngineWindow, GatewayLoad, GatewayView, HardwareFacts)


@pytest.mark.parametrize("group", [*TIMED, SpeculationWindow, TransferWindow])
def test_only_times_are_required(group: type) -> None:
    """A reader that has one figure of a group can give it."""
    needed = [each.name for each in fields(group) if each.default is MISSING and each.default_factory is MISSING]
    assert set(needed) <= {"rank", "start_s", "end_s", "read_at_s"}


@pytest.mark.parametrize("group", TIMED)
def test_every_group_has_a_time(group: type) -> None:
    """So that its age is known."""
    assert {"end_s", "read_at_s"} & {each.name for each in fields(group)}


def test_rates_are_none_without_their_parts() -> None:
    """Never a division by zero."""
    assert SpeculationWindow(draft_tokens=0.0, accepted_tokens=0.0).acceptance is None
    assert TransferWindow(bytes=5.0).bytes_per_s is None
    assert HardwareFacts(0.0, ports=(NicPort("a"),)).port_bytes_per_s is None
    assert HardwareFacts(0.0, ports=(NicPort("a", "active", 200.0), NicPort("b"))).port_bytes_per_s == 25e9
    assert HardwareFacts(0.0, ports=(NicPort("a", "active", 200.0),) * 8).port_bytes_per_s == 25e9
