"""Keys in place and in files, their digests, and whose tokens are believed."""

from math import inf

import pytest

from tenancy.policy import HMAC, KeyFile
from tenancy.tenants import UNLIMITED, Account, Quota, Tenant, quota_of
from tests.tenancy.policies import A, B, faults, policy, whose


def test_key_files_are_read_next_to_inline_keys() -> None:
    """A file's content may end in a newline; its path names it in a fault."""
    files = (KeyFile("legal", "k1", A + "\n"), KeyFile("legal", "k2", "secret-itself"))
    found = policy("auth: {keys_dir: keys}", files[0])
    assert whose(found) == {A: Tenant("legal")}
    assert found.keys[A].caller.key_id == "k1"
    assert faults("auth: {keys_dir: keys}", *files) == [
        (
            "keys/legal/k2: must be the sha256 of a key:"
            " 64 hexadecimal digits, optionally after `sha256:` or `hmac-sha256:`"
        )
    ]


def test_a_key_may_have_limits_of_its_own() -> None:
    """In a file as in place; they are one account more of callers with that key, and of no others."""
    source = (
        "auth: {keys_dir: keys, keys: {legal: [{digest: " + B + ", id: k2, tpm: 900, max_budget: 2.5}]}}\n"
        "tenants: {legal: {rpm: 100}}\n"
    )
    found = policy(source, KeyFile("legal", "k1", f"{A} rpm=5 max_budget=2 budget_duration=1h"))
    legal, hourly = found.tenants["legal"], Quota(requests_per_min=5, budget=2.0, budget_period_s=3600.0)
    of_tenant = Account("legal", Quota(requests_per_min=100))
    assert found.keys[A].caller.accounts == (of_tenant, Account("legal/key/k1", hourly))
    assert found.keys[B].caller.accounts == (of_tenant, Account("legal/key/k2", Quota(tokens_per_min=900, budget=2.5)))
    assert legal.caller(key_id="k3").accounts == (of_tenant,)
    assert quota_of(found.tenants, "legal/key/k1") == hourly
    assert quota_of(found.tenants, "legal/key/k3") == UNLIMITED


@pytest.mark.parametrize(
    "content", ["rpm=0", "rpm=off", "budget_duration=1d", "max_budget=-1", "rpm=1 rpm=2", "weight=2"]
)
def test_limits_of_a_key_that_make_no_sense_are_faults(content: str) -> None:
    """Of its file."""
    (fault,) = faults("auth: {keys_dir: keys}", KeyFile("legal", "k1", f"{A} {content}"))
    assert fault.startswith("keys/legal/k1: ")


def test_keys_of_one_id_have_the_same_limits() -> None:
    """They share one account."""
    keys = "auth: {keys: {legal: [{digest: %s, id: k, rpm: 5}, {digest: %s, id: k, rpm: %d}]}}"
    assert len(policy(keys % (A, B, 5)).keys) == 2
    assert faults(keys % (A, B, 6)) == ["auth.keys.legal[1]: another key of `legal` has the same id and other limits"]


def test_what_stands_behind_a_digest_counts() -> None:
    """User, group and end, in a file as in place; a day is UTC's."""
    source = "auth: {keys_dir: keys}\ntenants: {legal: {groups: {interns: {rpm: 5}}, per_user: {rpm: 2}}}\n"
    found = policy(source, KeyFile("legal", "k1", f"{A} user=ann group=interns expires_at=2026-12-01"))
    key = found.keys[A]
    assert (key.caller.user, key.caller.group, key.expires_s) == ("ann", "interns", 1_796_083_200.0)
    assert key.caller.accounts == (
        Account("legal/group/interns", Quota(requests_per_min=5)),
        Account("legal/user/ann", Quota(requests_per_min=2)),
    )
    in_place = policy(
        f"auth: {{keys: {{legal: [{{digest: {B}, id: k2, user: bob, expires_at: 2026-12-01T00:00:00Z}}, {A}]}}}}"
    )
    assert (in_place.keys[B].caller.key_id, in_place.keys[B].expires_s) == ("k2", 1_796_083_200.0)
    assert (in_place.keys[A].caller.key_id, in_place.keys[A].expires_s) == (A[:12], inf)


@pytest.mark.parametrize("behind", ["usr=ann", "user", "user=ann user=bob", "expires_at=soon", "group="])
def test_what_makes_no_sense_behind_a_digest_is_rejected(behind: str) -> None:
    """Unknown, without a value, twice, no time, empty."""
    assert len(faults("auth: {keys_dir: keys}", KeyFile("legal", "k1", f"{A} {behind}"))) == 1


def test_a_digest_may_be_made_with_a_secret() -> None:
    """It is then another than the plain one, and useless without the secret."""
    keyed = f"keys: {{a: ['{HMAC}{A.upper()}']}}"
    found = policy(f"auth: {{hmac_secret: 0123456789abcdef, {keyed}}}")
    assert set(found.keys) == {HMAC + A}
    assert faults(f"auth: {{{keyed}}}") == [
        "auth.keys.a[0]: is an HMAC digest; set auth.hmac_secret or auth.hmac_secret_file"
    ]


JWT = "issuer: 'https://sso.example', audiences: [hearth]"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "auth: is required: set at least one of keys"),
        ("auth: {}", "auth.keys: set at least one of keys, keys_dir, jwt, default_tenant"),
        ("auth: {keys: {a: [sk-123]}}", "auth.keys.a[0].digest: must be the sha256 of a key: 64 hexadecimal digits"),
        ("auth: {keys: {a: [{user: x}]}}", "auth.keys.a[0].digest: is missing"),
        (f"auth: {{keys: {{a: [{{digest: {A}, group: x}}]}}}}", "auth.keys.a[0]: unknown group `x` of tenant `a`"),
        ("auth: {kesy: {}}", "auth.kesy: unknown key (did you mean `keys`?)"),
        ("auth: {keys: {a: x}}", "auth.keys.a: must be a list, not a text"),
        ("auth: {hmac_secret: short}", "auth.hmac_secret: must have at least 16 characters"),
        ("auth: {default_tenant: a}\ntenants: {b: {}}", "auth.default_tenant: unknown tenant `a`"),
        (f"auth: {{jwt: {{{JWT}}}}}\ntenants: {{}}", "auth.jwt.tenant_claim: set tenant_claim or default_tenant"),
        (
            f"auth: {{jwt: {{{JWT}, tenant_claim: x}}}}",
            "tenants: is required with auth.jwt: tokens cannot create tenants",
        ),
        (f"auth: {{jwt: {{{JWT}, algorithms: [HS256]}}}}", "auth.jwt.algorithms: `HS256` is none of RS256"),
        (f"auth: {{jwt: {{{JWT}, algorithms: [none]}}}}", "auth.jwt.algorithms: `none` is none of RS256"),
        (f"auth: {{jwt: {{{JWT}, leeway_s: 301}}}}", "auth.jwt.leeway_s: must be at most 300"),
        (
            f"auth: {{jwt: {{{JWT}, jwks_url: 'http://a/keys'}}}}",
            "auth.jwt.jwks_url: must be an https:// URL",
        ),
        ("auth: {jwt: {audiences: []}}", "auth.jwt.issuer: is missing"),
        ("auth: {jwt: {audiences: []}}", "auth.jwt.audiences: must not be empty"),
        ("auth: [", "line 1, column 8: expected the node content, but found '<stream end>'"),
    ],
)
def test_a_bad_auth_is_rejected(source: str, words: str) -> None:
    """With the path and the word that is wrong."""
    assert any(words in reported for reported in faults(source))
