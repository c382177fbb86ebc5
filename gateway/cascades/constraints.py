"""Limits on a request's models: by its tenant's policy, by headers, in its body. The tightest counts.

A client can narrow what its tenant may have, never widen it. A tenant's share of escalated answers is limited too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cascade.models import Ladder
from gateway.cascades.features import Wishes
from routing.affinity import LastSeen
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
    """Which models may answer a request, by index, cheapest first, and how."""

    least: int = 0
    most: int = 0
    climbs: bool = True
    """Whether it may escalate."""
    quality_first: bool = False
    """Whether it starts with the largest model allowed; a smaller one answers only if that is overloaded or gone."""
    escalation_share: float = 1.0
    """Largest share of the tenant's judged answers that may be escalated."""


def terms_of(cascade: Ladder, tenant: Tenant, headers: Mapping[bytes, bytes], wishes: Wishes) -> Terms:
    """Return the limits of one request.

    Raises `Refused` where a client names a model that the cascade does not have, and where no model is left. A model in
    a tenant's policy limits only those cascades that have it.
    """
    sent = {name: headers[name].decode("latin-1").strip() for name in HEADERS if name in headers}
    least = [0 if tenant.min_rung is None else cascade.at(tenant.min_rung) or 0]
    top = len(cascade.rungs) - 1
    most = [top if tenant.max_rung is None or (at := cascade.at(tenant.max_rung)) is None else at]
    for name, model, found in (
        (MIN_RUNG.decode(), sent.get(MIN_RUNG), least),
        (MAX_RUNG.decode(), sent.get(MAX_RUNG), most),
        ("hearth.min_rung", wishes.min_rung, least),
        ("hearth.max_rung", wishes.max_rung, most),
    ):
        if model is not None:
            found.append(_index(cascade, model, name))
    lowest, highest = max(least), min(most)
    if lowest > highest:
        words = "No rung is left: the least that is asked for is above the highest that may answer."
        raise Refused(Reason.BAD_REQUEST, words, param="model")
    never = _flag(sent.get(NEVER_ESCALATE)) or wishes.never_escalate or tenant.never_escalate
    prefer = sent.get(PREFER) or wishes.prefer or tenant.prefer
    if prefer not in (COST, QUALITY):
        raise Refused(Reason.BAD_REQUEST, f"`{PREFER.decode()}` must be {COST} or {QUALITY}.", param=PREFER.decode())
    return Terms(lowest, highest, not never, prefer == QUALITY, tenant.max_escalation_share)


def _index(cascade: Ladder, model: str, param: str) -> int:
    at = cascade.at(model)
    if at is None:
        models = ", ".join(each.model for each in cascade.rungs)
        raise Refused(Reason.BAD_REQUEST, f"`{cascade.name}` has no rung `{model}`: {models}.", param=param)
    return at


def _flag(value: str | None) -> bool:
    if value is None or value.lower() in NO:
        return False
    if value.lower() in YES:
        return True
    name = NEVER_ESCALATE.decode()
    raise Refused(Reason.BAD_REQUEST, f"`{name}` must be true or false.", param=name)


MEMORY = 1000.0
"""Time constant of the counts below, in judged answers: older answers count exponentially less."""

MOST_SHARES = 4096


class Share:
    """Share of escalated answers of one tenant at one cascade, and its limit."""

    __slots__ = ("_escalated", "_judged", "most")

    def __init__(self, most: float = 1.0) -> None:
        self.most = most
        self._judged = 0.0
        self._escalated = 0.0

    def may_escalate(self) -> bool:
        """Return whether one more answer may be escalated now."""
        return self.most >= 1.0 or self._escalated + 1.0 <= self.most * (self._judged + 1.0)

    def take(self, *, is_escalated: bool) -> None:
        """Count a judged answer."""
        fading = 1.0 - 1.0 / MEMORY
        self._judged = self._judged * fading + 1.0
        self._escalated = self._escalated * fading + is_escalated


class Shares:
    """Shares of all tenants, the `MOST_SHARES` used last."""

    def __init__(self) -> None:
        self._shares: LastSeen[tuple[str, str], Share] = LastSeen(MOST_SHARES)

    def of(self, tenant: str | None, cascade: str, most: float) -> Share:
        """Return the share of a tenant at a cascade, with `most` as its limit from now on."""
        key = (tenant or "", cascade)
        share = self._shares.get(key) or Share()
        share.most = most
        self._shares.put(key, share)
        return share
