"""The gate of engines that keep to their roles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from routing.pairs_only import PairsOnly


def candidates(*prefillers: object) -> Any:
    """Positions by who prefills there."""
    return SimpleNamespace(prefillers=prefillers)


def test_only_pairs_where_there_are_any() -> None:
    """Without a pair the single engines must do."""
    gate = PairsOnly()
    assert not gate.opens(candidates(None, "p"), 0)
    assert gate.opens(candidates(None, "p"), 1)
    assert gate.opens(candidates(), 0)
    assert gate.pledge is None
