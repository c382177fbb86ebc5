"""ExampleConnector on the wire: nothing. Pods write prompts' KV into a folder, and find there what others wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.transfer.connector import PodAddress, Subject
from simulator.transfer.kv_transfer import NOTHING, KvFile, KvTransfer


class Example:
    """Keyed on all full blocks of a prompt: a longer prompt with the same beginning finds nothing."""

    def __init__(self, address: PodAddress, folder: Path) -> None:
        self._address = address
        self._folder = folder

    def read(self, params: Mapping[str, Any], subject: Subject) -> KvTransfer:
        """Load what another pod has already written; write the rest."""
        if not subject.blocks:
            return NOTHING
        path = self._folder / f"{subject.blocks[-1]:016x}.kv"
        if path.is_file():
            size = self._address.block_size
            return KvTransfer(min(len(subject.blocks), (subject.prompt_tokens - 1) // size) * size, KvFile(path))
        return KvTransfer(saves_to=path)

    def returned(self, kv_transfer: KvTransfer, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """It has no fields."""
        return None
