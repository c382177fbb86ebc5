"""Pods as they were named on the command line or in the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config.discovery import Found
from gateway.discovery.source import Tell


class Static:
    """A list that changes only when the configuration is read again."""

    name = "static"
    trouble = ""

    def __init__(self, found: Iterable[Found]) -> None:
        self._found = tuple(found)

    async def follow(self, tell: Tell) -> None:
        """Tell it once."""
        tell(self._found)
