"""Which of a machine's processes this one is, and what it shares with the others. A value; opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """The place of one gateway among those that a supervisor has started. The defaults: it is alone."""

    number: int = 0
    """1 for the first worker, 0 for a gateway that has no siblings."""
    processes: int = 1
    """How many workers share the machine and its traffic port."""
    folder: Path | None = None
    """The private run folder of the supervisor and its children."""
    warmth: Path | None = None
    """The socket of the warmth process, where there is one."""

    def lock(self, name: str) -> Path | None:
        """The lock under which what all of them write to is written to; None where nobody else writes."""
        return self.folder / f"{name}.lock" if self.folder else None
