"""Quotas for tests: a clock that is set by hand, and answers of known length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.models import ModelEntry
from gateway.limits.accounts import QuotaEnforcer
from gateway.limits.estimate import UsageEstimator
from routing.decision.router import Router
from tenancy.forecast import OutputLengthForecast
from tenancy.tenants import Account, Caller, Quota, Tenant

NOW_S = 1.8e9


@dataclass
class Hand:
    """A clock."""

    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


class Told(OutputLengthForecast):
    """Lengths of answers: as given, whatever was observed."""

    def __init__(self, expected: float = 10.0) -> None:
        super().__init__(shares=False)
        self.expected = expected
        self.seen: list[tuple[str | None, str, int]] = []

    def observe(self, tenant: str | None, model: str, tokens: int) -> None:
        self.seen.append((tenant, model, tokens))

    def tokens(self, tenant: str | None, model: str, part: float) -> float:
        return self.expected


def quotas_of(
    router: Router,
    clock: Hand | None = None,
    *,
    expected: float = 10.0,
    prices: Mapping[str, ModelEntry] | None = None,
) -> QuotaEnforcer:
    expecting = UsageEstimator(router, Told(expected), prices or {})
    return QuotaEnforcer(expecting, clock=clock or Hand(), draw=lambda: 0.5)


def caller_of(quota: Quota, name: str = "search") -> Caller:
    return Caller(Tenant(name, quota=quota), accounts=(Account(name, quota),))


PRICES = {"tiny": ModelEntry("tiny", input_cost_per_token=0.0, output_cost_per_token=1.0)}
