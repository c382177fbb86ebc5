"""Who asks what and when."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bench.slo.scenario import Bursts
from bench.slo.traffic import draw_traffic
from tests.bench.slo.small import ANN, BOB, CARL, SMALL


def test_the_same_seed_draws_the_same() -> None:
    """And another seed something else."""
    assert draw_traffic(SMALL, 10.0, 1) == draw_traffic(SMALL, 10.0, 1)
    assert draw_traffic(SMALL, 10.0, 1) != draw_traffic(SMALL, 10.0, 2)


def test_lasts_until_enough_have_come() -> None:
    """So many of the counted tier, the last of them last of all; others by their shares."""
    drawn = draw_traffic(replace(SMALL, until=("gold", 3_000)), 10.0, 1)
    count = Counter(one.tenant.name for one in drawn)
    assert count["ann"] == 3_000
    assert drawn[-1].tenant == ANN
    assert count["bob"] == pytest.approx(4_000, rel=0.05)
    assert drawn[-1].at_s == pytest.approx(3_000 / 0.3 / 10.0, rel=0.05)
    assert [one.at_s for one in drawn] == sorted(one.at_s for one in drawn)


def test_load_only_moves_arrivals() -> None:
    """At twice the load the same requests come in half the time."""
    slow, fast = draw_traffic(SMALL, 10.0, 1), draw_traffic(SMALL, 20.0, 1)
    assert [one.prompt_tokens for one in slow] == [one.prompt_tokens for one in fast]
    assert slow[-1].at_s == pytest.approx(2 * fast[-1].at_s)


def test_another_tenant_changes_no_other() -> None:
    """Each draws from a generator of its own."""
    without = draw_traffic(replace(SMALL, tenants=(ANN, BOB)), 10.0, 1)
    assert [one for one in draw_traffic(SMALL, 10.0, 1) if one.tenant != CARL] == without


def test_bursts_come_when_they_should() -> None:
    """Three times the rate for a fifth of the time."""
    bursty = replace(ANN, bursts=Bursts(every_s=10.0, for_s=2.0, times=3.0))
    drawn = draw_traffic(replace(SMALL, tenants=(bursty,), until=("gold", 4_000)), 10.0, 1)
    within = sum(one.at_s % 10.0 < 2.0 for one in drawn)
    assert within / len(drawn) == pytest.approx(3 * 2 / (3 * 2 + 8), rel=0.05)
    assert len(drawn) / drawn[-1].at_s == pytest.approx(3.0 * 1.4, rel=0.05)


def test_recorded_lengths_take_the_place_of_stated_ones() -> None:
    """As pairs."""
    drawn = draw_traffic(SMALL, 10.0, 1, [(5, 6), (7, 8)])
    assert {(one.prompt_tokens, one.answer_tokens) for one in drawn} == {(5, 6), (7, 8)}


def test_somebody_must_be_counted() -> None:
    """Else it would never end."""
    with pytest.raises(ValueError, match="nobody of tier gold"):
        draw_traffic(replace(SMALL, tenants=(BOB,)), 10.0, 1)
