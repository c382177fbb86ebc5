"""Tiers are promises, tenants are what is usual and what they say otherwise, and contradictions are refused."""

from math import inf

import pytest

from tenancy.objective import DEFAULT_TIER, OverloadAction, Tier
from tenancy.tenants import Quota
from tests.tenancy.policies import KEYED, TIERS, A, faults, policy


def test_tiers_are_objectives() -> None:
    """In seconds; what is not said is as for everybody."""
    found = policy(KEYED + TIERS + "tenants: {a: {tier: gold, weight: 2}, b: {tier: silver}}")
    gold, silver = found.tenants["a"], found.tenants["b"]
    assert gold.tier == Tier("gold", 10, 0.8, 0.0, 0.04, 8.0, 0.4, 0.5)
    assert (gold.weight, gold.on_overload) == (2.0, OverloadAction.REJECT)
    assert silver.tier.ttft_uncached_factor == 3.0
    assert silver.tier.tpot_s == inf
    assert (silver.on_overload, silver.relaxed) == (OverloadAction.RELAX, found.tiers["bronze"])
    assert found.tiers["batch"].is_best_effort
    assert policy(KEYED).tenants["a"].tier is DEFAULT_TIER


def test_what_is_default_holds_word_by_word() -> None:
    """A tenant's word replaces the usual one; `off` lifts a usual limit."""
    found = policy(
        KEYED + "defaults: {rpm: 10, tpm: 1000, max_tokens: 50, max_parallel_requests: 4, per_user: {rpm: 1}}\n"
        "tenants: {a: {rpm: 20, tpm: off, max_tokens: off, per_user: {tpm: 5}}, b: }\n"
    )
    assert found.tenants["a"].quota == Quota(requests_per_min=20, parallel_requests=4)
    assert (found.tenants["a"].output_cap, found.tenants["a"].per_user) == (None, Quota(tokens_per_min=5))
    assert found.tenants["b"].quota == Quota(requests_per_min=10, tokens_per_min=1000, parallel_requests=4)
    assert (found.tenants["b"].output_cap, found.tenants["b"].per_user) == (50, Quota(requests_per_min=1))


def test_every_limit_has_its_name() -> None:
    """As LiteLLM calls them, and our own beside."""
    found = policy(
        f"auth: {{keys: {{a: [{A}]}}}}\n"
        "tenants: {a: {rpm: 1, tpm: 2, input_tpm: 3, output_tpm: 4, uncached_tpm: 5, max_parallel_requests: 6,"
        " max_budget: 7.5, budget_duration: 12h, work_conserving: true}}\n"
    )
    assert found.tenants["a"].quota == Quota(1, 2, 3, 4, 5, 6, 7.5, 43_200.0, binds_only_under_load=True)


def test_names_lead_to_models_of_the_tenant() -> None:
    """A usual alias to what a tenant may not use leads nowhere for it."""
    found = policy(
        KEYED + "defaults: {models: [big, small], aliases: {gpt-4: big, mini: small}, downgrades: {big: small}}\n"
        "tenants: {a: {}, b: {models: [small]}}\n"
    )
    assert found.tenants["a"].aliases == {"gpt-4": "big", "mini": "small"}
    assert found.tenants["b"].aliases == {"mini": "small"}
    assert found.tenants["a"].downgrades == {"big": "small"}


@pytest.mark.parametrize(
    ("stated", "domain"),
    [("tenant", "tenant:a"), ("shared", None), ("law", "domain:law"), ("tenant:b", "domain:tenant:b")],
)
def test_caches_are_shared_within_a_domain(stated: str, domain: str | None) -> None:
    """A domain that is called like a tenant is not that tenant's."""
    found = policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{cache_isolation: '{stated}'}}}}")
    assert found.tenants["a"].trust_domain == domain


def test_regions_are_named() -> None:
    """None are named: anywhere."""
    found = policy(KEYED + "tenants: {a: {allowed_regions: [on-prem]}, b: {}}")
    assert (found.tenants["a"].regions, found.tenants["b"].regions) == (frozenset({"on-prem"}), None)


CONTRADICTIONS = [
    ("tenants: {a: {tier: gold}}", "tenants.a.tier: unknown tier `gold`"),
    (
        "tiers: {x: {guaranteed_share: 0.7}, y: {guaranteed_share: 0.4}}",
        "tiers: the guaranteed_share values add up to 1.1; the maximum is 1",
    ),
    ("tiers: {x: {on_overload: relax}}", "tiers.x.on_overload: `relax` requires a tier of lower priority"),
    ("tiers: {default: {}}", "tiers.default: is reserved for tenants without a tier"),
    ("tiers: {x: {ttft_s: -1}}", "tiers.x.ttft_s: must be above 0"),
    ("tenants: {a: {models: [x], aliases: {y: z}}}", "tenants.a.aliases.y: `z` is not in the tenant's models"),
    ("tenants: {a: {aliases: {y: z, z: w}}}", "tenants.a.aliases.y: `z` is itself an alias"),
    ("defaults: {models: [x], aliases: {y: z}}", "defaults.aliases.y: `z` is in no tenant's models"),
    ("tenants: {a: {downgrades: {x: x}}}", "tenants.a.downgrades.x: forms a cycle"),
    ("tenants: {a: {allowed_regions: []}}", "tenants.a.allowed_regions: must not be empty"),
    ("tenants: {a: {rpm: -5}}", "tenants.a.rpm: must be above 0"),
    ("tenants: {a: {max_budget: 0}}", "tenants.a.max_budget: must be above 0"),
    ("tenants: {a: {budget_duration: 1d}}", "tenants.a.budget_duration: requires max_budget"),
    ("tenants: {a: {max_budget: 5, budget_duration: 1mo}}", "must be a duration such as 30s, 5m, 12h, 1d or 2w"),
    ("tenants: {a: {on_overload: downgrade}}", "tenants.a.on_overload: `downgrade` requires downgrades"),
    ("tenants: {a: {on_overload: relax}}", "tenants.a.on_overload: `relax` requires a tier of lower priority"),
    ("tenants: {a: {cascade_max_model: 3}}", "tenants.a.cascade_max_model: must be a text, not a number"),
    ("defaults: {cascade_prefer: speed}", "defaults.cascade_prefer: `speed` is none of cost, quality"),
    ("tenants: {a: {}, a/b: {}}", "tenants.a/b: name must be at most 128 printable characters without `/`"),
    ("headers: {tenant: Authorization}", "headers.tenant: `authorization` is reserved; use another header"),
    ("headers: {tenant: x-a, user: X-A}", "headers: a header is listed under more than one key"),
    ("tenants: {a: {rmp: 5}}", "tenants.a.rmp: unknown key (did you mean `rpm`?)"),
    ("tenants: {a: {groups: {x: {max_tokens: 5}}}}", "tenants.a.groups.x.max_tokens: unknown key"),
]


@pytest.mark.parametrize(("source", "words"), CONTRADICTIONS)
def test_a_contradiction_is_rejected(source: str, words: str) -> None:
    """With its path and what is wrong."""
    reported = faults(f"auth: {{keys: {{a: [{A}]}}}}\n{source}")
    assert len(reported) == 1
    assert words in reported[0]
