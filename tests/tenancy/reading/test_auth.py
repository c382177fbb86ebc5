"""Keys in place and in files, their digests, and whose tokens are believed."""

from math import inf

import pytest

from tenancy.policy import HMAC, KeyFile
from tenancy.tenants import Account, Quota, Tenant
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
