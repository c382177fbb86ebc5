"""How several gateways share one limit: each holds a slice of it; all slices together are never more than the limit.

A slice is the right to have *used* that amount: within the last sixty seconds, at this moment, or within this period. A
gateway whose use stays below its slice need not send a request, and the limit holds exactly, whatever any clock
says. It sends one periodically: for more where it runs short, for less where it uses less.

A request states absolute values: it may be repeated, and its response may be lost. A gateway that requests less applies
it before asking (`held` is what it applies meanwhile, and never less is granted); more it applies after the response.
If demand exceeds the limit, every response has the `fair` share: the same for all, or less for gateways that want less.
The script of `gateway/limits/redis_coordinator.py` says all this in Lua.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class LeaseRequest(Struct, frozen=True, array_like=True):
    """What one gateway says of one limit of one account."""

    name: str
    """Of the limit; a budget's with the period that it is for."""
    limit: float
    held: float
    wanted: float
    minimum: float
    """What it needs to serve one request, where it has used nothing: granted where there is room, fair or not."""
    keeps_s: float
    """Seconds after which its slice expires without another request."""
    gone: float = 0.0
    """What those have used that are there no more, as far as the asker knows."""
    lasts: bool = False
    """Whether what a gateway has used stays used when it leaves: a budget."""


class LeaseGrant(Struct, frozen=True, array_like=True):
    """The answer."""

    slice: float
    fair: float
    """A gateway that holds more comes down to it."""
    elsewhere: float
    """All slices of others."""
    gone: float
    was_known: bool
    """Whether anything was known of the asker. Where it held a slice before, a no says that all was forgotten."""


class Lease(Struct):
    """One gateway's slice of one limit."""

    slice: float
    wanted: float
    until_s: float


class AccountLeases:
    """All slices of one account."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[str, Lease]] = {}
        self._gone: dict[str, tuple[float, float]] = {}
        """By name: how much, and until when it counts."""

    def grant(self, who: str, requests: Iterable[LeaseRequest], now_s: float) -> list[LeaseGrant]:
        """Renew a gateway's slices."""
        self._forget(now_s)
        return [self._grant(who, ask, now_s) for ask in requests]

    def release(self, who: str, requests: Iterable[LeaseRequest], now_s: float) -> None:
        """Release the slices of a gateway that has left."""
        for ask in requests:
            known = self._holders.get(ask.name, {}).pop(who, None)
            if known is not None and ask.lasts:
                self._gone[ask.name] = (self._gone.get(ask.name, (0.0, 0.0))[0] + ask.held, now_s + ask.keeps_s)
        self._forget(now_s)

    @property
    def is_empty(self) -> bool:
        return not self._holders and not self._gone

    def _forget(self, now_s: float) -> None:
        for name, holders in list(self._holders.items()):
            self._holders[name] = {who: held for who, held in holders.items() if held.until_s > now_s}
            if not self._holders[name]:
                del self._holders[name]
        self._gone = {name: (used, until_s) for name, (used, until_s) in self._gone.items() if until_s > now_s}

    def _grant(self, who: str, ask: LeaseRequest, now_s: float) -> LeaseGrant:
        holders, until_s = self._holders.setdefault(ask.name, {}), now_s + ask.keeps_s
        was_known = holders.pop(who, None) is not None
        gone = max(ask.gone, self._gone.get(ask.name, (0.0, 0.0))[0])
        if gone:
            self._gone[ask.name] = (gone, until_s)
        elsewhere = sum(held.slice for held in holders.values())
        limit = ask.limit - gone
        fair = fair_share(limit, ask.wanted, [held.wanted for held in holders.values()])
        granted = max(ask.held, min(max(fair, ask.minimum), limit - elsewhere))
        holders[who] = Lease(granted, ask.wanted, until_s)
        return LeaseGrant(granted, fair, elsewhere, gone, was_known)


def fair_share(limit: float, wanted: float, others: Iterable[float]) -> float:
    """The max-min fair share of a gateway that wants `wanted`: all of it, or as much as any other gets."""
    wants = sorted([wanted, *others])
    rest, left = limit, len(wants)
    for want in wants:
        if want * left > rest:
            return max(0.0, min(wanted, rest / left))
        rest, left = rest - want, left - 1
    return wanted
