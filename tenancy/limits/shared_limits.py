"""One gateway's part of a shared limit: what it requests of the coordinator, and what it may use when partitioned.

The rules of leases are in `tenancy.limits.leases`. While a gateway receives nothing from the others, it keeps its lease
for a moment: all leases together are the limit. Then a gateway with more than an even share comes down to that; a
minute later, when what was used above it is out of every window, the others come up. So that no request is rejected
only because its gateway happened to hold no lease, each may use a little beyond: its `float`. In any sixty seconds all
of them use at most

    limit + replicas x max(limit / (8 x replicas), one request)  =  limit x 9/8, or one request each beyond it

and a minute after the change exactly the limit again. Assumes that all lose contact at about the same time; a gateway
that is cut off alone may use an even share while the others, which take it for dead, use all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from tenancy.limits.account_usage import SPAN_S, AccountUsage, LimitNeeds, LimitUsage, PeriodCounter
from tenancy.limits.leases import LeaseGrant, LeaseRequest
from tenancy.limits.usage import LimitKind

FLOAT_DIVISOR = 8
"""The floats of all gateways together are this part of a limit."""

GRACE_S = 8.0
"""Leases are kept for this time."""

LEEWAY_S = 7.0
"""Gateways do not lose contact at the same moment."""

SETTLED_S = GRACE_S + LEEWAY_S + SPAN_S + LEEWAY_S

COUNTED = frozenset({LimitKind.REQUESTS, LimitKind.PARALLEL})


def float_amount(meter: LimitUsage, replicas: int) -> float:
    """What may be used beyond the lease."""
    even = meter.limit / (FLOAT_DIVISOR * replicas)
    return max(1.0, even) if meter.kind in COUNTED else even


def partitioned_cap(meter: LimitUsage, replicas: int, silent_s: float) -> float:
    """Return what one of `replicas` gateways may use `silent_s` seconds after it last received from the others."""
    even, extra = meter.limit / replicas, float_amount(meter, replicas)
    lent = meter.lease
    held = lent.slice if lent is not None else 0.0
    if meter.kind is LimitKind.BUDGET and lent is not None:
        rest = meter.limit - held - lent.elsewhere - lent.gone
        return min(meter.limit, held + extra + max(0.0, rest) / replicas)
    if silent_s < GRACE_S:
        cap = held + extra
    elif silent_s < SETTLED_S:
        cap = min(held, even) + extra
    else:
        cap = even
    return min(meter.limit, cap)


def allow_first_request(book: AccountUsage, needs: LimitNeeds) -> bool:
    """Allow one request to an account that has used nothing, however small its share is. Returns whether that helps."""
    for kind, amount in needs.items():
        meter = book.limit_usages.get(kind)
        if meter is None or meter.counter.used or amount > meter.limit or kind is LimitKind.BUDGET:
            return False
        meter.cap = max(meter.cap, amount)
    return True


FORESIGHT = 2.0
"""Slices have room for this many times the use since the last request."""

MIN_STEP = 0.25
"""Share of a step: an account with any usage gets that much more, so that few have to request twice."""

MAX_WINDOWS = 1_440
"""A debt of a gateway that has died is remembered for a day at most."""

DEAD_S = 15.0
"""A gateway without a request for this long is dead, and so are its requests."""


def lease_requests(
    book: AccountUsage, now_s: float, *, replicas: int, is_gathering: bool, needs: LimitNeeds
) -> list[LeaseRequest]:
    """What to ask for. From here on the book goes by the less where that is wanted.

    `is_gathering`: others have not reported yet what they hold, so no gateway takes more than an even share. A request
    for what a client request needs gives nothing back: what it was granted of one limit it would lose by asking for
    another.
    """
    book.advance(now_s)
    return [
        _ask(meter, now_s, replicas, needs.get(kind, 0.0), is_gathering=is_gathering, keeps=bool(needs))
        for kind, meter in book.limit_usages.items()
    ]


def _ask(
    meter: LimitUsage, now_s: float, replicas: int, need: float, *, is_gathering: bool, keeps: bool
) -> LeaseRequest:
    used, step = meter.counter.used, max(float_amount(meter, replicas), need)
    coming = max(FORESIGHT * meter.demand, meter.unmet)
    slack = min(step, max(coming, MIN_STEP * step)) if coming else 0.0
    wanted = min(meter.limit, max(used + max(slack, need), meter.cap if keeps else 0.0))
    if is_gathering:
        wanted = min(wanted, meter.limit / replicas)
        need = 0.0
    meter.demand = meter.unmet = 0.0
    meter.cap = min(meter.cap, max(wanted, used))
    return LeaseRequest(
        limit_name(meter, now_s),
        meter.limit,
        held=max(meter.cap, used),
        wanted=max(wanted, used),
        minimum=need if not used else 0.0,
        keeps_s=_keeps_s(meter, now_s),
        gone=meter.lease.gone if meter.lease is not None else 0.0,
        lasts=meter.kind is LimitKind.BUDGET,
    )


def limit_name(meter: LimitUsage, now_s: float) -> str:
    """A budget is another one in each period."""
    if isinstance(meter.counter, PeriodCounter):
        return f"{meter.kind}/{meter.counter.length_s:g}/{int(now_s // meter.counter.length_s)}"
    return meter.kind


def _kind_of(name: str) -> LimitKind:
    return LimitKind(name.partition("/")[0])


def _keeps_s(meter: LimitUsage, now_s: float) -> float:
    if isinstance(meter.counter, PeriodCounter):
        return meter.counter.length_s - now_s % meter.counter.length_s + SPAN_S
    if meter.kind is LimitKind.PARALLEL:
        return DEAD_S
    # What is owed is paid one window after the other, and must not be dropped with the account that owes it.
    windows = ceil(meter.counter.used / meter.limit) if meter.limit else 1
    return DEAD_S + SPAN_S * max(1, min(windows, MAX_WINDOWS))


def apply_grants(book: AccountUsage, requests: Sequence[LeaseRequest], grants: Iterable[LeaseGrant]) -> bool:
    """Go by what was granted. Returns whether the lender has forgotten what it had granted before."""
    has_forgotten = False
    for ask, granted in zip(requests, grants, strict=False):
        meter = book.limit_usages.get(_kind_of(ask.name))
        if meter is None or meter.limit != ask.limit:  # The quota has changed meanwhile.
            continue
        has_forgotten |= meter.lease is not None and meter.lease.slice > 0 and not granted.was_known
        meter.lease = granted
        # A holder of more than is fair comes down to it, also below what is used; what is used stays counted until it
        # ends. Debt is reported as used, and may be more than the limit: it gives no right to use more.
        cap = granted.slice if ask.minimum or granted.fair >= granted.slice else granted.fair
        meter.cap = min(cap, meter.limit)
    return has_forgotten


def final_requests(book: AccountUsage, now_s: float) -> tuple[list[LeaseRequest], list[LeaseRequest]]:
    """What a gateway that ends says: what of its slices stays used for a while, and what it gives up."""
    book.advance(now_s)
    stays: list[LeaseRequest] = []
    ends: list[LeaseRequest] = []
    for meter in book.limit_usages.values():
        used = meter.counter.used
        lasts = meter.kind is LimitKind.BUDGET
        request = LeaseRequest(
            limit_name(meter, now_s), meter.limit, used, used, 0.0, _keeps_s(meter, now_s), lasts=lasts
        )
        (ends if lasts or meter.kind is LimitKind.PARALLEL else stays).append(request)
    return stays, ends
