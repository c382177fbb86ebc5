"""What the configuration holds and nobody may read out of a log."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secret:
    """Something that must not be printed, and therefore cannot be by accident."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"
