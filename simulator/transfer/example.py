"""ExampleConnector on the wire: nothing. Pods write prompts' KV into a folder, and find there what others wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.transfer.connector import Place, Subject
from simulator.transfer.errand import NOTHING, Errand, Shelf


class Example:
    """Keyed on all full blocks of a prompt: a longer prompt with the same beginning finds nothing."""

    def __init__(self, place: Place, shelf: Path) -> None:
        self._place = place
        self._shelf = shelf

    def read(self, params: Mapping[str, Any], subject: Subject) -> Errand:
        """What another pod has already written is loaded; what nobody has is written."""
        if not subject.blocks:
            return NOTHING
        path = self._shelf / f"{subject.blocks[-1]:016x}.kv"
        if path.is_file():
            size = self._place.block_size
            return Errand(min(len(subject.blocks), (subject.prompt_tokens - 1) // size) * size, Shelf(path))
        return Errand(saves_to=path)

    def returned(self, errand: Errand, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """It has no fields."""
        return None
