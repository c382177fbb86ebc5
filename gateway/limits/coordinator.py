"""The seam to whoever lends slices of limits that several gateways share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tenancy.limits.leases import Ask, Granted


class LenderAway(Exception):  # noqa: N818 - a state, not an error
    """It did not answer in time, or not at all."""


class Lender(Protocol):
    """Redis, or the warmth process of the host."""

    @property
    def is_connected(self) -> bool: ...

    async def ask(self, path: str, who: str, asks: Sequence[Ask]) -> list[Granted]:
        """Slices of the limits of one account, as `Slices.ask` gives them. Raises `LenderAway`."""
        ...

    async def leave(self, path: str, who: str, asks: Sequence[Ask]) -> None:
        """Give them all up. Raises `LenderAway`."""
        ...

    async def run(self) -> None:
        """Keep connected until cancelled."""
        ...
