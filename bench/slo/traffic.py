"""Draws who asks what and when from a scenario. Pure: the same scenario, load and seed give the same requests.

Each tenant draws from a generator of its own, so that another's traffic does not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import takewhile
from random import Random

from bench.slo.scenario import Customer, Scenario


@dataclass(frozen=True, slots=True)
class Offered:
    """One request that a tenant wants answered, whatever its client makes of it."""

    at_s: float
    tenant: Customer
    prompt_tokens: int
    answer_tokens: int


def draw_traffic(scenario: Scenario, load: float, seed: int) -> list[Offered]:
    """All requests at `load` requests a second, in order, until enough of the counted tier have come."""
    tier, requests = scenario.until
    flows = {tenant.name: _flow(tenant, load, seed) for tenant in scenario.tenants if tenant.share > 0}
    counted = [tenant.name for tenant in scenario.tenants if tenant.tier == tier and tenant.name in flows]
    if not counted:
        raise ValueError(f"{scenario.name}: nobody of tier {tier} asks, so it would never end")
    met = merge(*(flows[name] for name in counted), key=_at_s)
    drawn = [next(met) for _ in range(requests)]
    end_s = drawn[-1].at_s
    others = [takewhile(lambda one: one.at_s <= end_s, flow) for name, flow in flows.items() if name not in counted]
    return list(merge(drawn, *others, key=_at_s))


def _flow(tenant: Customer, load: float, seed: int) -> Iterator[Offered]:
    """Poisson arrivals, thinned from the highest rate there is, without end."""
    random = Random(f"{seed} {tenant.name}")
    peak = max(1.0, tenant.bursts.times) if tenant.bursts else 1.0
    at_s = 0.0
    while True:
        at_s += random.expovariate(load * tenant.share * peak)
        if tenant.bursts and random.random() * peak >= tenant.bursts.factor(at_s):
            continue
        yield Offered(at_s, tenant, tenant.prompt.draw(random), tenant.answer.draw(random))


def _at_s(one: Offered) -> float:
    return one.at_s
