"""Tiers are promises, tenants are what is usual and what they say otherwise, and contradictions are refused."""

from math import inf

import pytest

from tenancy.objective import DEFAULT_TIER, OverloadAction, Tier
from tenancy.tenants import Quota
from tests.tenancy.policies import KEYED, TIERS, A, faults, policy


def test_tiers_are_promises() -> None:
    """In seconds; what is not said is as for everybody."""
    found = policy(KEYED + TIERS + "tenants: {a: {tier: gold, weight: 2}, b: {tier: silver}}")
    gold, silver = found.tenants["a"], found.tenants["b"]
    assert gold.tier == Tier("gold", 10, 0.8, 0.0, 0.04, 8.0, 0.4, 0.5)
    assert (gold.weight, gold.on_overload) == (2.0, OverloadAction.REJECT)
    assert silver.tier.ttft_per_cold == 3.0
    assert silver.tier.tpot_s == inf
    assert (silver.on_overload, silver.relaxed) == (OverloadAction.RELAX, found.tiers["bronze"])
    assert found.tiers["batch"].is_batch
    assert policy(KEYED).tenants["a"].tier is DEFAULT_TIER


def test_what_is_usual_holds_word_by_word() -> None:
    """A tenant's word replaces the usual one; `off` lifts a usual limit."""
    found = policy(
        KEYED + "defaults: {rpm: 10, tpm: 1000, max_tokens: 50, max_parallel_requests: 4, per_user: {rpm: 1}}\n"
        "tenants: {a: {rpm: 20, tpm: off, max_tokens: off, per_user: {tpm: 5}}, b: }\n"
    )
    assert found.tenants["a"].quota == Quota(requests_per_min=20, parallel_requests=4)
    assert (found.tenants["a"].output_cap, found.tenants["a"].per_user) == (None, Quota(tokens_per_min=5))
    assert found.tenants["b"].quota == Quota(requests_per_min=10, tokens_per_min=1000, parallel_requests=4)
    assert (found.tenants["b"].output_cap, found.tenants["b"].per_user) == (50, Quota(requests_per_min=1))


def test_every_limit_has_its_word() -> None:
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
    ("said", "domain"),
    [("tenant", "tenant:a"), ("shared", None), ("law", "domain:law"), ("tenant:b", "domain:tenant:b")],
)
def test_caches_are_shared_within_a_domain(said: str, domain: str | None) -> None:
    """A domain that is called like a tenant is not that tenant's."""
    found = policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{cache_isolation: '{said}'}}}}")
    assert found.tenants["a"].trust_domain == domain


def test_regions_are_named() -> None:
    """None are named: anywhere."""
    found = policy(KEYED + "tenants: {a: {allowed_regions: [on-prem]}, b: {}}")
    assert (found.tenants["a"].regions, found.tenants["b"].regions) == (frozenset({"on-prem"}), None)


CONTRADICTIONS = [
    ("tenants: {a: {tier: gold}}", "tenants.a.tier: `gold` is no tier of this policy"),
    ("tiers: {x: {reserve: 0.7}, y: {reserve: 0.4}}", "tiers: the reserves are 1.1 of the fleet together"),
    ("tiers: {x: {on_overload: relax}}", "tiers.x.on_overload: there is no lower tier to relax to"),
    ("tiers: {usual: {}}", "tiers.usual: is what those have who name no tier"),
    ("tiers: {x: {ttft_ms: -1}}", "tiers.x.ttft_ms: must be above 0"),
    ("tenants: {a: {models: [x], aliases: {y: z}}}", "tenants.a.aliases.y: the tenant may not use `z`"),
    ("tenants: {a: {aliases: {y: z, z: w}}}", "tenants.a.aliases.y: `z` is itself an alias"),
    ("defaults: {models: [x], aliases: {y: z}}", "defaults.aliases.y: no tenant may use `z`"),
    ("tenants: {a: {downgrades: {x: x}}}", "tenants.a.downgrades.x: leads back to itself"),
    ("tenants: {a: {allowed_regions: []}}", "tenants.a.allowed_regions: must name one"),
    ("tenants: {a: {rpm: -5}}", "tenants.a.rpm: must be above 0"),
    ("tenants: {a: {max_budget: 0}}", "tenants.a.max_budget: must be above 0"),
    ("tenants: {a: {budget_duration: 1d}}", "tenants.a.budget_duration: stands without max_budget"),
    ("tenants: {a: {max_budget: 5, budget_duration: 1mo}}", "must be a number of s, m, h, d or w"),
    ("tenants: {a: {on_overload: downgrade}}", "tenants.a.on_overload: there are no downgrades to answer instead"),
    ("tenants: {a: {on_overload: relax}}", "tenants.a.on_overload: there is no lower tier to relax to"),
    ("tenants: {a: {max_rung: 3}}", "tenants.a.max_rung: must be a text, not a number"),
    ("defaults: {prefer: speed}", "defaults.prefer: `speed` is none of cost, quality"),
    ("tenants: {a: {}, a/b: {}}", "tenants.a/b: a name must be at most 128 printable characters without `/`"),
    ("headers: {tenant: Authorization}", "headers.tenant: `authorization` has a meaning of its own"),
    ("headers: {tenant: x-a, user: X-A}", "headers: one header cannot say two things"),
    ("tenants: {a: {rmp: 5}}", "tenants.a.rmp: unknown key (did you mean `rpm`?)"),
    ("tenants: {a: {groups: {x: {max_tokens: 5}}}}", "tenants.a.groups.x.max_tokens: unknown key"),
]


@pytest.mark.parametrize(("source", "words"), CONTRADICTIONS)
def test_a_contradiction_is_refused(source: str, words: str) -> None:
    """With its path and what is wrong."""
    told = faults(f"auth: {{keys: {{a: [{A}]}}}}\n{source}")
    assert len(told) == 1
    assert words in told[0]
