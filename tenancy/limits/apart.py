"""What a gateway may use of a shared limit while it hears from nobody how much the others use.

For a moment everybody keeps his slice: all slices together are the limit. Then whoever holds more than an even share
comes down to that; a minute later, when what was used above it is out of every window, the others come up. So that no
request is turned away only because its gateway happened to hold no slice, each may use a little beyond: its `float`.
In any sixty seconds all of them use at most

    limit + replicas x max(limit / (8 x replicas), one request)  =  limit x 9/8, or one request each beyond it

and a minute after the change exactly the limit again. Assumes that all lose sight of each other at about the same time;
a gateway that is cut off alone may use an even share while the others, who take it for dead, use all.
"""

from __future__ import annotations

from tenancy.limits.book import Book, Meter, Needs
from tenancy.limits.memories import SPAN_S
from tenancy.limits.use import Kind

FLOATS = 8
"""The floats of all gateways together are this part of a limit."""

GRACE_S = 8.0
"""Slices stand for so long."""

LEEWAY_S = 7.0
"""Not everybody loses sight in the same moment."""

SETTLED_S = GRACE_S + LEEWAY_S + SPAN_S + LEEWAY_S

COUNTED = frozenset({Kind.REQUESTS, Kind.PARALLEL})


def float_of(meter: Meter, replicas: int) -> float:
    """What may be used without anybody's leave."""
    even = meter.limit / (FLOATS * replicas)
    return max(1.0, even) if meter.kind in COUNTED else even


def cap_apart(meter: Meter, replicas: int, silent_s: float) -> float:
    """What may be used by a gateway that was one of so many, so long after it last heard of the others."""
    even, extra = meter.limit / replicas, float_of(meter, replicas)
    lent = meter.lent
    held = lent.slice if lent is not None else 0.0
    if meter.kind is Kind.BUDGET and lent is not None:
        rest = meter.limit - held - lent.elsewhere - lent.gone
        return min(meter.limit, held + extra + max(0.0, rest) / replicas)
    if silent_s < GRACE_S:
        cap = held + extra
    elif silent_s < SETTLED_S:
        cap = min(held, even) + extra
    else:
        cap = even
    return min(meter.limit, cap)


def stretch(book: Book, needs: Needs) -> bool:
    """Whoever has used nothing may serve one request, however small its share is. Returns whether that helps."""
    for kind, amount in needs.items():
        meter = book.meters.get(kind)
        if meter is None or meter.memory.used or amount > meter.limit or kind is Kind.BUDGET:
            return False
        meter.cap = max(meter.cap, amount)
    return True
