"""Ladders as values: prices, abilities, and whether they judge."""

import pytest

from cascade.ladder import Ability, Ladder, Price, Rung, Window

SMALL = Rung("small", Price(1e-6, None, 4e-6), context_tokens=8_000, abilities=frozenset({Ability.TOOLS}))
LARGE = Rung("large", Price(1e-5, 1e-6, 4e-5))


def test_what_an_answer_costs() -> None:
    """Cold and warm input apart where they are priced apart; seconds of a GPU on top."""
    assert SMALL.price.of(cold_tokens=100, warm_tokens=100, output_tokens=50) == pytest.approx(400e-6)
    assert LARGE.price.of(cold_tokens=100, warm_tokens=100, output_tokens=50) == pytest.approx(3100e-6)
    assert Price(per_gpu_s=2.0).of(cold_tokens=9, output_tokens=9, gpu_s=0.5) == pytest.approx(1.0)


def test_what_a_rung_can() -> None:
    """Abilities and room."""
    assert SMALL.can(frozenset({Ability.TOOLS}), 8_000)
    assert not SMALL.can(frozenset({Ability.VISION}), 10)
    assert not SMALL.can(frozenset(), 8_001)
    assert LARGE.can(frozenset(Ability), 10**9)


@pytest.mark.parametrize(
    ("window", "whole", "judges"), [(None, False, False), (Window(), False, True), (None, True, True)]
)
def test_whether_a_ladder_judges(window: Window | None, whole: bool, judges: bool) -> None:
    """One that only chooses where to start may stand in any shell."""
    assert Ladder("auto", (SMALL, LARGE), window=window, whole=whole).judges is judges


def test_rungs_are_found_by_model() -> None:
    """By their place from the cheapest; a stranger has none."""
    ladder = Ladder("auto", (SMALL, LARGE))
    assert (ladder.at("small"), ladder.at("large"), ladder.at("other")) == (0, 1, None)
