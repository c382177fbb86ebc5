"""The value of a prefix on more engines: a decayed sum of the waits for the engines that hold it.

A copy of a prefix costs its prefill once. That is too much for any one request that would wait less, and little where
many wait: so their waits are summed, and the request that arrives when the sum reaches the price of a copy makes one
for it. No more copies are made than waits have paid for, and waits decay. Time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from math import exp

MEMORY_S = 30.0
"""Decay constant of recorded waits: whether the prefix is requested again is unknown."""

MAX_PREFIXES = 1 << 12
"""Those waited for longest ago are forgotten first."""


class PrefixDemand:
    """Accounts in seconds, by the last block of a prefix."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixDemand of {len(self._accounts)} prefixes>"

    def waited_s(self, prefix: int, now_s: float) -> float:
        """What is on the account of a prefix now."""
        account = self._accounts.get(prefix)
        return account[0] * exp((account[1] - now_s) / MEMORY_S) if account else 0.0

    def add(self, prefix: int, seconds: float, now_s: float) -> None:
        """A request has to wait longer for engines that hold this prefix than it would elsewhere; or, where seconds are
        negative, a copy was made at their price.
        """
        left_s = self.waited_s(prefix, now_s) + seconds
        if left_s <= 0:
            self._accounts.pop(prefix, None)
            return
        self._accounts[prefix] = left_s, now_s
        self._accounts.move_to_end(prefix)
        if len(self._accounts) > MAX_PREFIXES:
            self._accounts.popitem(last=False)
