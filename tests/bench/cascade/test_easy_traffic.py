"""The table of easy traffic: mixes have the stated share, and more easy traffic saves more."""

from __future__ import annotations

from random import Random

import pytest

from bench.cascade.easy_traffic import EasyRow, easy_targets, mixed, mixed_rows
from cascade.calibration.examples import Example
from cascade.calibration_file import ANY_BUCKET


def answers(count: int) -> list[Example]:
    """Half of the prompts are easy; a small answer costs a twentieth."""
    random = Random(1)
    return [
        Example(ANY_BUCKET, (float(random.random() < 0.5), 1.0), (0.0,), (0.05, 1.0), (0.02,)) for _ in range(count)
    ]


def test_a_mix_has_its_share_of_easy_prompts() -> None:
    """Drawn from the easy and the hard ones of the file."""
    mix = mixed(answers(300), 0.8, 0.7)
    assert sum(each.scores[0] >= each.scores[1] for each in mix) / len(mix) == pytest.approx(0.7)


def test_more_easy_traffic_saves_more() -> None:
    """And no row saves more than its best threshold, or loses more than random routing at the same price."""
    rows = [row for easy in (0.6, 0.9) for row in mixed_rows(answers(300), 0.9, easy, 2)]
    assert rows[2].saved > rows[0].saved + 0.1
    assert rows[3].saved > rows[1].saved
    for row in rows:
        assert row.saved <= row.best + 0.05
        assert row.loss <= row.random_loss


def test_the_smallest_share_is_named() -> None:
    """At which 40 % are saved; 1 where none does."""
    row = EasyRow("made", 0.8, 0.7, 0.03, 1.0, 0.45, 0.01, 0.02, 0.5, 0.6, 0.2, 0.9)
    found = list(easy_targets([row, row.__class__("made", 0.8, 0.5, 0.03, 1.0, 0.2, 0.03, 0.02, 0.5, 0.6, 0.2, 0.9)]))
    assert [target.found for target in found] == [0.7, 1]
