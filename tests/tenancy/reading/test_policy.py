"""A policy says whose key is whose and what each tenant bought; what it cannot enforce it refuses."""

import pickle
from hashlib import sha256
from math import inf

import pytest

from tenancy.document import Invalid
from tenancy.policy import HMAC, Bare, HeaderRules, KeyFile, Policy, TokenRules
from tenancy.quota import Account, Quota
from tenancy.reading.policy import read_policy
from tenancy.tenants import Tenant
from tenancy.tier import USUAL, Overload, Tier

A, B = sha256(b"key-a").hexdigest(), sha256(b"key-b").hexdigest()

KEYED = f"auth: {{keys: {{a: [{A}], b: [{B}]}}}}\n"

TIERS = """
tiers:
  gold: {priority: 10, ttft_ms: 800, tpot_ms: 40, weight: 8, reserve: 0.4, max_queue_ms: 500, on_overload: reject}
  silver: {priority: 0, ttft_ms: 2000, ttft_cold_factor: 3, weight: 3, reserve: 0.2, on_overload: relax}
  bronze: {priority: -10, reserve: 0.02, max_queue_ms: 20000}
  batch: {priority: -20, batch: true}
"""


def policy(source: str, *files: KeyFile) -> Policy:
    return read_policy(source, {}, Bare(*files))


def faults(source: str, *files: KeyFile) -> list[str]:
    with pytest.raises(Invalid) as refused:
        policy(source, *files)
    return [str(fault) for fault in refused.value.faults]


def whose(found: Policy) -> dict[str, Tenant]:
    return {digest: key.caller.tenant for digest, key in found.keys.items()}


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


def test_key_files_are_read_beside_inline_keys() -> None:
    """A file's content may end in a newline; its path names it in a fault."""
    files = (KeyFile("legal", "k1", A + "\n"), KeyFile("legal", "k2", "secret-itself"))
    found = policy("auth: {keys_dir: keys}", files[0])
    assert whose(found) == {A: Tenant("legal")}
    assert found.keys[A].caller.key_id == "k1"
    assert faults("auth: {keys_dir: keys}", *files) == [
        "keys/legal/k2: must be the sha256 of a key: 64 hexadecimal digits (or hmac-sha256: and as many)"
    ]


def test_what_stands_behind_a_digest_counts() -> None:
    """User, group and end, in a file as in place; a day is UTC's."""
    source = "auth: {keys_dir: keys}\ntenants: {legal: {groups: {interns: {rpm: 5}}, per_user: {rpm: 2}}}\n"
    found = policy(source, KeyFile("legal", "k1", f"{A} user=ann group=interns until=2026-12-01"))
    key = found.keys[A]
    assert (key.caller.user, key.caller.group, key.until_s) == ("ann", "interns", 1_796_083_200.0)
    assert key.caller.accounts == (
        Account("legal/group/interns", Quota(requests_per_min=5)),
        Account("legal/user/ann", Quota(requests_per_min=2)),
    )
    in_place = policy(
        f"auth: {{keys: {{legal: [{{digest: {B}, id: k2, user: bob, until: 2026-12-01T00:00:00Z}}, {A}]}}}}"
    )
    assert (in_place.keys[B].caller.key_id, in_place.keys[B].until_s) == ("k2", 1_796_083_200.0)
    assert (in_place.keys[A].caller.key_id, in_place.keys[A].until_s) == (A[:12], inf)


@pytest.mark.parametrize("behind", ["usr=ann", "user", "user=ann user=bob", "until=soon", "group="])
def test_what_makes_no_sense_behind_a_digest_is_refused(behind: str) -> None:
    """Unknown, without a value, twice, no time, empty."""
    assert len(faults("auth: {keys_dir: keys}", KeyFile("legal", "k1", f"{A} {behind}"))) == 1


def test_a_key_belongs_to_one_tenant() -> None:
    """The same digest under two names would make one of them the other."""
    assert faults(f"auth: {{keys: {{a: [{A}], b: [{A}]}}}}") == ["auth.keys.b[0]: this key is also a key of `a`"]
    assert whose(policy(f"auth: {{keys: {{a: [{A}, {A}]}}}}")) == {A: Tenant("a")}


def test_a_misspelt_tenant_gets_no_unbounded_key() -> None:
    """Where tenants are named, a key of another name is a fault, not a new tenant with every right."""
    assert faults(f"auth: {{keys: {{legall: [{A}]}}}}\ntenants: {{legal: {{models: [x]}}}}") == [
        "auth.keys.legall[0]: `legall` is no tenant of this policy"
    ]


def test_tiers_are_promises() -> None:
    """In seconds; what is not said is as for everybody."""
    found = policy(KEYED + TIERS + "tenants: {a: {tier: gold, weight: 2}, b: {tier: silver}}")
    gold, silver = found.tenants["a"], found.tenants["b"]
    assert gold.tier == Tier("gold", 10, 0.8, 0.0, 0.04, 8.0, 0.4, 0.5)
    assert (gold.weight, gold.on_overload) == (2.0, Overload.REJECT)
    assert silver.tier.ttft_per_cold == 3.0
    assert silver.tier.tpot_s == inf
    assert (silver.on_overload, silver.relaxed) == (Overload.RELAX, found.tiers["bronze"])
    assert found.tiers["batch"].is_batch
    assert policy(KEYED).tenants["a"].tier is USUAL


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


def test_a_digest_may_be_made_with_a_secret() -> None:
    """It is then another than the plain one, and useless without the secret."""
    keyed = f"keys: {{a: ['{HMAC}{A.upper()}']}}"
    found = policy(f"auth: {{hmac_secret: 0123456789abcdef, {keyed}}}")
    assert set(found.keys) == {HMAC + A}
    assert faults(f"auth: {{{keyed}}}") == ["auth.keys.a[0]: is an HMAC, and auth has no hmac_secret"]


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
    ("tenants: {a: {max_rung: x}}", "tenants.a.max_rung: not enforced by this version"),
    ("defaults: {min_rung: x}", "defaults.min_rung: not enforced by this version"),
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


JWT = "issuer: 'https://sso.example', audiences: [hearth]"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "auth: is missing: without it nobody can be told apart"),
        ("auth: {}", "auth.keys: is missing, and so are keys_dir, jwt and default_tenant: nobody could be let in"),
        ("auth: {keys: {a: [sk-123]}}", "auth.keys.a[0].digest: must be the sha256 of a key: 64 hexadecimal digits"),
        ("auth: {keys: {a: [{user: x}]}}", "auth.keys.a[0].digest: is missing"),
        (f"auth: {{keys: {{a: [{{digest: {A}, group: x}}]}}}}", "auth.keys.a[0]: `x` is no group of `a`"),
        ("auth: {kesy: {}}", "auth.kesy: unknown key (did you mean `keys`?)"),
        ("auth: {keys: {a: x}}", "auth.keys.a: must be a list, not a text"),
        ("auth: {hmac_secret: short}", "auth.hmac_secret: must have 16 characters or more"),
        ("auth: {default_tenant: a}\ntenants: {b: {}}", "auth.default_tenant: `a` is no tenant of this policy"),
        (f"auth: {{jwt: {{{JWT}}}}}\ntenants: {{}}", "auth.jwt.tenant_claim: is missing, and so is default_tenant"),
        (f"auth: {{jwt: {{{JWT}, tenant_claim: x}}}}", "tenants: is missing: tokens may not make tenants"),
        (f"auth: {{jwt: {{{JWT}, algorithms: [HS256]}}}}", "auth.jwt.algorithms: `HS256` is none of RS256"),
        (f"auth: {{jwt: {{{JWT}, algorithms: [none]}}}}", "auth.jwt.algorithms: `none` is none of RS256"),
        (f"auth: {{jwt: {{{JWT}, leeway_s: 301}}}}", "auth.jwt.leeway_s: must be 300 at most"),
        (
            f"auth: {{jwt: {{{JWT}, jwks_url: 'http://a/keys'}}}}",
            "auth.jwt.jwks_url: must be a URL beginning with https",
        ),
        ("auth: {jwt: {audiences: []}}", "auth.jwt.issuer: is missing"),
        ("auth: {jwt: {audiences: []}}", "auth.jwt.audiences: must name one"),
        ("auth: [", "line 1, column 8: expected the node content, but found '<stream end>'"),
    ],
)
def test_a_bad_policy_is_refused(source: str, words: str) -> None:
    """With the path and the word that is wrong."""
    assert any(words in told for told in faults(source))


def test_all_faults_are_told_at_once() -> None:
    """In one go, wherever they are."""
    source = "auth: {keys: {a: [x]}}\ntiers: {x: {weight: 0}}\ntenants: {a: {tier: y, rpm: none}, b: 5}\nextra: 1\n"
    assert [told.partition(":")[0] for told in faults(source)] == [
        "tiers.x.weight",
        "auth.keys.a[0].digest",
        "tenants.a.rpm",
        "tenants.a.tier",
        "tenants.b",
        "extra",
    ]


def test_digests_and_secrets_do_not_show() -> None:
    """A policy in a log or a traceback tells none."""
    secret = "a-very-long-secret"
    found = policy(f"auth: {{hmac_secret: {secret}, keys: {{a: [{A}]}}}}")
    assert A not in repr(found)
    assert secret not in repr(found)
    assert A not in repr(KeyFile("a", "b", A))


def test_a_policy_can_be_sent_to_workers() -> None:
    """It arrives as it was."""
    found = policy(KEYED + TIERS + "tenants: {a: {tier: gold, aliases: {x: y}}, b: {groups: {c: {rpm: 5}}}}")
    assert pickle.loads(pickle.dumps(found)) == found
