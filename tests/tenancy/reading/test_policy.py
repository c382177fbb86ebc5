"""A policy says whose key is whose and what each tenant bought; all that is wrong with it is told at once."""

from tenancy.policy import HeaderRules, TokenRules
from tenancy.tenants import Account, Quota, Tenant
from tests.tenancy.policies import KEYED, A, B, faults, policy, whose


def test_keys_lead_to_tenants_with_their_models() -> None:
    """A tenant's own list stands above the usual one."""
    found = policy(
        f"auth: {{keys: {{legal: [{A}], search: ['sha256:{B.upper()}']}}}}\n"
        "tenants: {legal: {models: [big]}, search: {}}\n"
        "defaults: {models: [small]}\n"
    )
    assert whose(found) == {A: Tenant("legal", frozenset({"big"})), B: Tenant("search", frozenset({"small"}))}


def test_without_named_tenants_every_key_brings_its_own() -> None:
    """Keys alone make a policy: each name is a tenant that may do what is usual."""
    found = policy(KEYED)
    assert whose(found) == {A: Tenant("a"), B: Tenant("b")}
    assert set(found.tenants) == {"a", "b"}


def test_a_key_belongs_to_one_tenant() -> None:
    """The same digest under two names would make one of them the other."""
    assert faults(f"auth: {{keys: {{a: [{A}], b: [{A}]}}}}") == [
        "auth.keys.b[0]: duplicate key: tenant `a` has the same digest"
    ]
    assert whose(policy(f"auth: {{keys: {{a: [{A}, {A}]}}}}")) == {A: Tenant("a")}


def test_a_misspelt_tenant_gets_no_unbounded_key() -> None:
    """Where tenants are named, a key of another name is a fault, not a new tenant with every right."""
    assert faults(f"auth: {{keys: {{legall: [{A}]}}}}\ntenants: {{legal: {{models: [x]}}}}") == [
        "auth.keys.legall[0]: unknown tenant `legall`"
    ]


def test_tokens_headers_and_who_shows_nothing() -> None:
    """The rest of what says who asks."""
    found = policy(
        "auth:\n  default_tenant: a\n"
        "  jwt: {issuer: 'https://sso.example', audiences: [hearth], tenant_claim: team, leeway_s: 5}\n"
        "tenants: {a: {rpm: 5}}\nheaders: {tenant: X-Team, objective: [X-Tier, x-objective], user: []}\n"
    )
    assert found.jwt == TokenRules("https://sso.example", ("hearth",), "team", leeway_s=5.0)
    assert found.headers == HeaderRules(tenant=("x-team",), objective=("x-tier", "x-objective"), user=())
    assert found.default is not None
    assert found.default.accounts == (Account("a", Quota(requests_per_min=5)),)


def test_all_faults_are_reported_at_once() -> None:
    """In one go, wherever they are."""
    source = "auth: {keys: {a: [x]}}\ntiers: {x: {weight: 0}}\ntenants: {a: {tier: y, rpm: none}, b: 5}\nextra: 1\n"
    assert [reported.partition(":")[0] for reported in faults(source)] == [
        "tiers.x.weight",
        "auth.keys.a[0].digest",
        "tenants.a.rpm",
        "tenants.a.tier",
        "tenants.b",
        "extra",
    ]
