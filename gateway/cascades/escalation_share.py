"""How many of a tenant's judged answers were thrown away, so that no more are than its policy allows."""

from __future__ import annotations

from routing.affinity import LastSeen

MEMORY = 1000.0
"""Judged answers that are remembered, the older the less."""

MOST_SHARES = 4096


class Share:
    """Of one tenant on one ladder."""

    __slots__ = ("_escalated", "_judged", "most")

    def __init__(self, most: float = 1.0) -> None:
        self.most = most
        self._judged = 0.0
        self._escalated = 0.0

    def may_escalate(self) -> bool:
        """Whether one more may be thrown away now."""
        return self.most >= 1.0 or self._escalated + 1.0 <= self.most * (self._judged + 1.0)

    def take(self, *, is_escalated: bool) -> None:
        """One more was judged."""
        fading = 1.0 - 1.0 / MEMORY
        self._judged = self._judged * fading + 1.0
        self._escalated = self._escalated * fading + is_escalated


class Shares:
    """Of all tenants that have asked lately."""

    def __init__(self) -> None:
        self._shares: LastSeen[tuple[str, str], Share] = LastSeen(MOST_SHARES)

    def of(self, tenant: str | None, ladder: str, most: float) -> Share:
        key = (tenant or "", ladder)
        share = self._shares.get(key) or Share()
        share.most = most
        self._shares.put(key, share)
        return share
