"""Processor time is counted where the system tells, and not made up where it does not."""

import os

import pytest

from simulator.processor import Meter, machine_ticks, used_s

tells = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="this system does not tell processor times")  # noqa: PTH110


@tells
def test_our_own_time_grows_with_work() -> None:
    """Counted in ticks, so work until the next one."""
    before = used_s([os.getpid()])
    assert before is not None
    after = before
    while after == before:
        sum(range(100_000))
        after = used_s([os.getpid()]) or 0.0
    assert after > before


@tells
def test_a_meter_reports_a_share_of_all_cores() -> None:
    """Between nothing and all of them."""
    busy = Meter([]).busy()
    assert busy is not None
    assert busy >= 0.0


def test_a_program_that_is_gone_is_not_counted() -> None:
    """None, not zero: nobody knows what it had used."""
    assert used_s([2**22 + 1]) is None


@tells
def test_the_machine_reports_of_all() -> None:
    """Used ticks are some of all ticks, and neither runs backwards."""
    before = machine_ticks()
    sum(range(1_000_000))
    after = machine_ticks()
    assert before is not None
    assert after is not None
    assert 0 < before[0] <= before[1]
    assert before[0] <= after[0]
    assert before[1] <= after[1]
