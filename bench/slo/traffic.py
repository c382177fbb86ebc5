"""Draws who asks what and when from a scenario. Pure: the same scenario, load and seed give the same requests.

Each tenant draws from a generator of its own, so that another's traffic does not change it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import takewhile
from pathlib import Path
from random import Random

from bench.slo.scenario import Customer, Scenario
from simulator.trace_formats import load_trace


@dataclass(frozen=True, slots=True)
class Offered:
    """One request that a tenant wants answered, whatever its client makes of it."""

    at_s: float
    tenant: Customer
    prompt_tokens: int
    answer_tokens: int


Recorded = Sequence[tuple[int, int]]
"""Tokens of (prompt, answer), request by request."""


def draw_traffic(scenario: Scenario, load: float, seed: int, recorded: Recorded = ()) -> list[Offered]:
    """All requests at `load` requests a second, in order, until enough of the counted tier have come.

    `recorded` lengths take the place of the stated ones.
    """
    tier, requests = scenario.until
    flows = {tenant.name: _flow(tenant, load, seed, recorded) for tenant in scenario.tenants if tenant.share > 0}
    counted = [tenant.name for tenant in scenario.tenants if tenant.tier == tier and tenant.name in flows]
    if not counted:
        raise ValueError(f"{scenario.name}: nobody of tier {tier} asks, so it would never end")
    met = merge(*(flows[name] for name in counted), key=_at_s)
    drawn = [next(met) for _ in range(requests)]
    end_s = drawn[-1].at_s
    others = [takewhile(lambda one: one.at_s <= end_s, flow) for name, flow in flows.items() if name not in counted]
    return list(merge(drawn, *others, key=_at_s))


def recorded_lengths(file: str) -> Recorded:
    """The lengths of a recording in the folder that TRACES names. Raises TraceFault."""
    trace = load_trace(Path(os.environ.get("TRACES", "../shared/traces")) / file)
    return [(arrival.prompt_tokens, arrival.output_tokens) for arrival in trace.arrivals]


def _flow(tenant: Customer, load: float, seed: int, recorded: Recorded) -> Iterator[Offered]:
    """Poisson arrivals, thinned from the highest rate there is, without end."""
    random = Random(f"{seed} {tenant.name}")
    peak = max(1.0, tenant.bursts.times) if tenant.bursts else 1.0
    at_s = 0.0
    while True:
        at_s += random.expovariate(load * tenant.share * peak)
        if tenant.bursts and random.random() * peak >= tenant.bursts.factor(at_s):
            continue
        lengths = random.choice(recorded) if recorded else (tenant.prompt.draw(random), tenant.answer.draw(random))
        yield Offered(at_s, tenant, *lengths)


def _at_s(one: Offered) -> float:
    return one.at_s
