"""Which pods may be drained because of findings: few, never below what is needed, and never a pool-wide fault. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from diagnosis.facts import FleetFacts
from diagnosis.finding import Finding, Severity

MAX_POOL_SHARE = 0.1
"""Of a pool that may be drained at one time; one pod may always be."""

POOL_WIDE_SHARE = 0.3
"""Share of a pool with one finding above which nothing is drained for it: the fault is the pool's, and alerts."""


@dataclass(frozen=True, slots=True)
class BoundPods:
    """Pods to which some requests are bound: those of a role, in the regions that a tenant's residency permits."""

    pods: frozenset[str]
    needed: int = 1
    """Of them, ready pods that these requests need."""


@dataclass(frozen=True, slots=True)
class DrainPolicy:
    """What an operator permits. The default permits nothing."""

    recipes: frozenset[str] = frozenset()
    """Names of recipes for whose findings pods may be drained."""
    needed: Mapping[str, int] = field(default_factory=dict)
    """By pool: ready pods that objectives need; 1 for a pool that is not listed."""
    bound: tuple[BoundPods, ...] = ()
    """What has to stay beside that, in a part of a pool."""


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What follows from the findings now."""

    drained: tuple[str, ...] = ()
    """Pods that may be drained, those that are drained already included."""
    restored: tuple[str, ...] = ()
    """Pods that were drained for findings that are gone, or that are no longer permitted."""
    pool_wide: tuple[tuple[str, str], ...] = ()
    """(Recipe, pool) of findings that concern so much of a pool that nothing is drained for them."""


def drainable(
    findings: Iterable[Finding], facts: FleetFacts, policy: DrainPolicy, drained: Collection[str] = ()
) -> DrainPlan:
    """Return which pods may be drained now, and which of those that were `drained` by this rule must be restored.

    Only raised findings of severity failing or degrading count, of recipes that the policy names.
    """
    members: dict[str, list[str]] = {}
    ready: dict[str, set[str]] = {}
    for pod in facts.pods:
        members.setdefault(pod.pool, []).append(pod.address)
        if pod.is_ready and pod.address not in drained:
            ready.setdefault(pod.pool, set()).add(pod.address)
    chosen: dict[str, list[str]] = {}
    pool_wide: list[tuple[str, str]] = []
    for finding in findings:
        pods = [each for each in finding.pods if each in members.get(finding.pool, ())]
        if finding.recipe not in policy.recipes or finding.severity is Severity.ADVICE or not pods:
            continue
        if len(pods) > POOL_WIDE_SHARE * len(members[finding.pool]) and len(pods) > 1:
            pool_wide.append(finding.key)
            continue
        held = chosen.setdefault(finding.pool, [])
        held += [each for each in pods if each not in held]
    permitted: list[str] = []
    for pool, pods in chosen.items():
        pool_pods = BoundPods(frozenset(members[pool]), max(policy.needed.get(pool, 1), 1))
        bound = [pool_pods, *(each for each in policy.bound if not each.pods.isdisjoint(pool_pods.pods))]
        permitted += _permitted(pods, len(members[pool]), ready.get(pool, set()), bound, drained)
    restored = tuple(each for each in drained if each not in permitted)
    return DrainPlan(tuple(permitted), restored, tuple(pool_wide))


def _permitted(
    pods: list[str], size: int, ready: set[str], bound: list[BoundPods], drained: Collection[str]
) -> list[str]:
    limit = max(1, int(MAX_POOL_SHARE * size))
    kept: list[str] = []
    left = set(ready)
    # Those that are drained first; then by address, so that several gateways choose the same.
    for pod in sorted(pods, key=lambda each: (each not in drained, each)):
        if len(kept) >= limit:
            break
        rest = left - {pod}
        if all(len(rest & each.pods) >= each.needed for each in bound if pod in each.pods):
            kept.append(pod)
            left = rest
    return kept
