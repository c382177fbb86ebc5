"""What may be said of rungs for one request: by its tenant's policy, by a header, in its body. The tightest counts.

A client can narrow what its tenant may have, never widen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cascade.ladder import Ladder
from gateway.cascades.features import Wishes
from routing.rejection import Reason, Refused
from tenancy.tenants import Tenant

MIN_RUNG = b"x-hearth-min-rung"
MAX_RUNG = b"x-hearth-max-rung"
NEVER_ESCALATE = b"x-hearth-never-escalate"
PREFER = b"x-hearth-prefer"
HEADERS = (MIN_RUNG, MAX_RUNG, NEVER_ESCALATE, PREFER)

COST, QUALITY = "cost", "quality"

YES = frozenset({"true", "1", "yes"})
NO = frozenset({"false", "0", "no"})


@dataclass(frozen=True, slots=True)
class Terms:
    """Which rungs may answer, counted from the cheapest, and how."""

    least: int = 0
    most: int = 0
    climbs: bool = True
    """Whether it may end on a higher rung than it began at."""
    quality_first: bool = False
    """It begins at the highest rung that may answer, and lower only where that one is overloaded or gone."""
    escalation_share: float = 1.0
    """Of the tenant's judged answers, so many may be thrown away."""


def terms_of(ladder: Ladder, tenant: Tenant, headers: Mapping[bytes, bytes], wishes: Wishes) -> Terms:
    """The terms of one request. Raises `Refused` where a client names what is no rung, or leaves none."""
    least, most = [_own(ladder, tenant.min_rung)], [_own(ladder, tenant.max_rung)]
    said = {name: headers[name].decode("latin-1").strip() for name in HEADERS if name in headers}
    for name, rung, found in (
        (MIN_RUNG.decode(), said.get(MIN_RUNG), least),
        (MAX_RUNG.decode(), said.get(MAX_RUNG), most),
        ("hearth.min_rung", wishes.min_rung, least),
        ("hearth.max_rung", wishes.max_rung, most),
    ):
        if rung is not None:
            found.append(_named(ladder, rung, name))
    lowest = max((at for at in least if at is not None), default=0)
    highest = min((at for at in most if at is not None), default=len(ladder.rungs) - 1)
    if lowest > highest:
        words = "No rung is left: the least that is asked for is above the highest that may answer."
        raise Refused(Reason.BAD_REQUEST, words, param="model")
    never = _flag(said.get(NEVER_ESCALATE)) or wishes.never_escalate or tenant.never_escalate
    prefer = said.get(PREFER) or wishes.prefer or tenant.prefer
    if prefer not in (COST, QUALITY):
        raise Refused(Reason.BAD_REQUEST, f"`{PREFER.decode()}` must be {COST} or {QUALITY}.", param=PREFER.decode())
    return Terms(lowest, highest, not never, prefer == QUALITY, tenant.max_escalation_share)


def _own(ladder: Ladder, rung: str | None) -> int | None:
    """A policy's word binds those ladders that have such a rung."""
    return None if rung is None else ladder.at(rung)


def _named(ladder: Ladder, rung: str, param: str) -> int:
    at = ladder.at(rung)
    if at is None:
        models = ", ".join(each.model for each in ladder.rungs)
        raise Refused(Reason.BAD_REQUEST, f"`{ladder.name}` has no rung `{rung}`: {models}.", param=param)
    return at


def _flag(said: str | None) -> bool:
    if said is None or said.lower() in NO:
        return False
    if said.lower() in YES:
        return True
    name = NEVER_ESCALATE.decode()
    raise Refused(Reason.BAD_REQUEST, f"`{name}` must be true or false.", param=name)
