"""Targets share the draws by weight."""

from __future__ import annotations

import pytest

from routing.model_rewrite import ModelRewrite

HALVES = ModelRewrite((("a", 1), ("b", 2), ("c", 1)))


@pytest.mark.parametrize(
    ("draw", "target"), [(0.0, "a"), (0.249, "a"), (0.25, "b"), (0.749, "b"), (0.75, "c"), (1.0, "c")]
)
def test_a_draw_selects_one_target(draw: float, target: str) -> None:
    """The intervals are as wide as the weights, in the order of the targets."""
    assert HALVES.choose(draw) == target


def test_shares_are_those_of_the_weights() -> None:
    """Over evenly spread draws, exactly."""
    chosen = [HALVES.choose(at / 400) for at in range(400)]
    assert [chosen.count(name) for name in "abc"] == [100, 200, 100]
