"""The bench of routing after an outage: what is judged, and that faults reach the exchange."""

from __future__ import annotations

from dataclasses import replace

from bench.outage import Row, settings, targets
from simulator.replay import Fault, Setting, play
from simulator.workload import CHAT, generate

GOOD = Row("undisturbed", 0.3, 1.0, 3.0, 0)


def test_rows_are_held_against_the_same_gateways_without_a_fault() -> None:
    """Hits and p95 of TTFT; the first row, one gateway, is only shown."""
    rows = [replace(GOOD, name="one", hit=0.9), GOOD, replace(GOOD, hit=0.2), replace(GOOD, ttft_p95_s=4.0)]
    assert [target.is_met for target in targets(rows)] == [False, True, True, False]


def test_there_is_a_row_for_each_kind_of_fault() -> None:
    """And one of the same gateways without."""
    found = [setting.fault.kind if setting.fault else None for setting in settings(4).values()]
    assert found == [None, "none", "drop", "stall", "isolate"]


def test_gateways_whose_updates_are_lost_choose_otherwise() -> None:
    """The fault reaches the exchange: the same requests go to other engines, and all are answered."""
    trace = generate(replace(CHAT, requests_per_s=4.0), 120, seed=1)
    setting = Setting(pods=3, replicas=2, fault=Fault("none"))
    undisturbed, lost = (
        play(trace, replace(setting, fault=fault)).records
        for fault in (Fault("none"), Fault("drop", 5.0, trace.length_s))
    )
    assert [one.pod for one in undisturbed] != [one.pod for one in lost]
    assert not any(record.failure for record in lost)
