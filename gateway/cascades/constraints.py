"""Limits on a request's models: by its tenant's policy, by headers, in its body. The tightest counts.

A client can narrow what its tenant may have, never widen it. A tenant's share of escalated answers is limited too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cascade.models import Cascade
from gateway.cascades.features import CascadeOptions
from routing.affinity import RecentMap
from routing.rejection import Reason, RequestRejected
from tenancy.tenants import Tenant

MIN_MODEL_HEADER = b"x-hearth-cascade-min-model"
MAX_MODEL_HEADER = b"x-hearth-cascade-max-model"
NEVER_ESCALATE_HEADER = b"x-hearth-cascade-never-escalate"
PREFER_HEADER = b"x-hearth-cascade-prefer"
BUCKET_HEADER = b"x-hearth-cascade-bucket"
CASCADE_HEADERS = (MIN_MODEL_HEADER, MAX_MODEL_HEADER, NEVER_ESCALATE_HEADER, PREFER_HEADER, BUCKET_HEADER)

COST, QUALITY = "cost", "quality"

YES = frozenset({"true", "1", "yes"})
NO = frozenset({"false", "0", "no"})


@dataclass(frozen=True, slots=True)
class CascadeConstraints:
    """Which models may answer a request, by index, cheapest first, and how."""

    min_index: int = 0
    max_index: int = 0
    may_escalate: bool = True
    """Whether it may escalate."""
    quality_first: bool = False
    """Whether it starts with the largest model allowed; a smaller one answers only if that is overloaded or gone."""
    escalation_share: float = 1.0
    """Largest share of the tenant's judged answers that may be escalated."""
    bucket: str | None = None
    """Task bucket that the client or its tenant names; None: it is computed from the prompt."""


def read_constraints(
    cascade: Cascade, tenant: Tenant, headers: Mapping[bytes, bytes], wishes: CascadeOptions
) -> CascadeConstraints:
    """Return the limits of one request.

    Raises `RequestRejected` where a client names a model that the cascade does not have, and where no model is left. A
    model in a tenant's policy limits only those cascades that have it.
    """
    sent = {name: headers[name].decode("latin-1").strip() for name in CASCADE_HEADERS if name in headers}
    minimum = [0 if tenant.cascade_min_model is None else cascade.index_of(tenant.cascade_min_model) or 0]
    top = len(cascade.models) - 1
    maximum = [
        top if tenant.cascade_max_model is None or (at := cascade.index_of(tenant.cascade_max_model)) is None else at
    ]
    for name, model, found in (
        (MIN_MODEL_HEADER.decode(), sent.get(MIN_MODEL_HEADER), minimum),
        (MAX_MODEL_HEADER.decode(), sent.get(MAX_MODEL_HEADER), maximum),
        ("hearth.cascade_min_model", wishes.cascade_min_model, minimum),
        ("hearth.cascade_max_model", wishes.cascade_max_model, maximum),
    ):
        if model is not None:
            found.append(_index(cascade, model, name))
    lowest, highest = max(minimum), min(maximum)
    if lowest > highest:
        words = "No model is left: the minimum model is above the maximum model."
        raise RequestRejected(Reason.BAD_REQUEST, words, param="model")
    never = _flag(sent.get(NEVER_ESCALATE_HEADER)) or wishes.cascade_never_escalate or tenant.cascade_never_escalate
    prefer = sent.get(PREFER_HEADER) or wishes.cascade_prefer or tenant.cascade_prefer
    if prefer not in (COST, QUALITY):
        raise RequestRejected(
            Reason.BAD_REQUEST, f"`{PREFER_HEADER.decode()}` must be {COST} or {QUALITY}.", param=PREFER_HEADER.decode()
        )
    bucket = _bucket(cascade, tenant, sent.get(BUCKET_HEADER) or wishes.cascade_bucket)
    return CascadeConstraints(
        lowest, highest, not never, prefer == QUALITY, tenant.cascade_max_escalation_share, bucket
    )


def _bucket(cascade: Cascade, tenant: Tenant, named: str | None) -> str | None:
    """Return the named bucket. One in a tenant's policy holds for those cascades only that have it."""
    if named is None:
        return tenant.cascade_bucket if tenant.cascade_bucket in cascade.buckets else None
    if named not in cascade.buckets:
        known = ", ".join(sorted(cascade.buckets)) or "none"
        raise RequestRejected(
            Reason.BAD_REQUEST,
            f"Unknown bucket `{named[:64]}` of cascade `{cascade.name}`; requests may name {known}.",
            param=BUCKET_HEADER.decode(),
        )
    return named


def _index(cascade: Cascade, model: str, param: str) -> int:
    at = cascade.index_of(model)
    if at is None:
        models = ", ".join(each.name for each in cascade.models)
        raise RequestRejected(
            Reason.BAD_REQUEST,
            f"Unknown model `{model}` of cascade `{cascade.name}`; its models are {models}.",
            param=param,
        )
    return at


def _flag(value: str | None) -> bool:
    if value is None or value.lower() in NO:
        return False
    if value.lower() in YES:
        return True
    name = NEVER_ESCALATE_HEADER.decode()
    raise RequestRejected(Reason.BAD_REQUEST, f"`{name}` must be true or false.", param=name)


ESCALATION_MEMORY = 1000.0
"""Time constant of the counts below, in judged answers: older answers count exponentially less."""

MAX_LIMITERS = 4096


class EscalationLimiter:
    """Share of escalated answers of one tenant at one cascade, and its limit."""

    __slots__ = ("_escalated", "_judged", "max_share")

    def __init__(self, maximum: float = 1.0) -> None:
        self.max_share = maximum
        self._judged = 0.0
        self._escalated = 0.0

    def may_escalate(self) -> bool:
        """Return whether one more answer may be escalated now."""
        return self.max_share >= 1.0 or self._escalated + 1.0 <= self.max_share * (self._judged + 1.0)

    def record(self, *, is_escalated: bool) -> None:
        """Count a judged answer."""
        fading = 1.0 - 1.0 / ESCALATION_MEMORY
        self._judged = self._judged * fading + 1.0
        self._escalated = self._escalated * fading + is_escalated


class EscalationLimiters:
    """Shares of all tenants, the `MAX_LIMITERS` used last."""

    def __init__(self) -> None:
        self._shares: RecentMap[tuple[str, str], EscalationLimiter] = RecentMap(MAX_LIMITERS)

    def limiter(self, tenant: str | None, cascade: str, maximum: float) -> EscalationLimiter:
        """Return the share of a tenant at a cascade, with `maximum` as its limit from now on."""
        key = (tenant or "", cascade)
        share = self._shares.get(key) or EscalationLimiter()
        share.max_share = maximum
        self._shares.put(key, share)
        return share
