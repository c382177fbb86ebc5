"""Recipes as values."""

from __future__ import annotations

from diagnosis.recipes.registry import RECIPES
from diagnosis.scene import Scene
from tests.diagnosis.scene import NOW_S, fleet


def test_looks_are_pure() -> None:
    """The same facts give the same answer twice, in any order of recipes."""
    scene = Scene(fleet(), None, NOW_S)
    first = [list(recipe.look(scene)) for recipe in RECIPES]
    again = [list(recipe.look(scene)) for recipe in reversed(RECIPES)]
    assert first == again[::-1]
