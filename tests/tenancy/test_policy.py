"""A policy says whose key is whose; what it cannot enforce it refuses."""

from collections.abc import Iterable
from hashlib import sha256

import pytest

from tenancy.document import Invalid, Wrong
from tenancy.policy import KeyFile, Policy, read_policy
from tenancy.tenants import Tenant

A, B = sha256(b"key-a").hexdigest(), sha256(b"key-b").hexdigest()


def no_files(folder: str) -> Iterable[KeyFile]:
    raise Wrong(f"there is no folder `{folder}`")


def policy(source: str, *files: KeyFile) -> Policy:
    return read_policy(source, {}, (lambda _: files) if files else no_files)


def faults(source: str, *files: KeyFile) -> list[str]:
    with pytest.raises(Invalid) as refused:
        policy(source, *files)
    return [str(fault) for fault in refused.value.faults]


def test_keys_lead_to_tenants_with_their_models() -> None:
    """A tenant's own list stands above the usual one."""
    found = policy(
        f"auth: {{keys: {{legal: [{A}], search: ['sha256:{B.upper()}']}}}}\n"
        "tenants: {legal: {models: [big]}, search: {}}\n"
        "defaults: {models: [small]}\n"
    )
    assert found.by_digest == {A: Tenant("legal", frozenset({"big"})), B: Tenant("search", frozenset({"small"}))}


def test_without_named_tenants_every_key_brings_its_own() -> None:
    """Keys alone make a policy: each name is a tenant that may do what is usual."""
    found = policy(f"auth: {{keys: {{a: [{A}], b: [{B}]}}}}")
    assert found.by_digest == {A: Tenant("a"), B: Tenant("b")}
    assert set(found.tenants) == {"a", "b"}


def test_key_files_are_read_beside_inline_keys() -> None:
    """A file's content may end in a newline; its path names it in a fault."""
    files = (KeyFile("legal", "k1", A + "\n"), KeyFile("legal", "k2", "secret-itself"))
    assert policy("auth: {keys_dir: keys}", files[0]).by_digest == {A: Tenant("legal")}
    assert faults("auth: {keys_dir: keys}", *files) == [
        "keys/legal/k2: must be the sha256 of a key: 64 hexadecimal digits"
    ]


def test_a_key_belongs_to_one_tenant() -> None:
    """The same digest under two names would make one of them the other."""
    assert faults(f"auth: {{keys: {{a: [{A}], b: [{A}]}}}}") == ["auth.keys.b[0]: this key is also a key of `a`"]
    assert policy(f"auth: {{keys: {{a: [{A}, {A}]}}}}").by_digest == {A: Tenant("a")}


def test_a_misspelt_tenant_gets_no_unbounded_key() -> None:
    """Where tenants are named, a key of another name is a fault, not a new tenant with every right."""
    assert faults(f"auth: {{keys: {{legall: [{A}]}}}}\ntenants: {{legal: {{models: [x]}}}}") == [
        "auth.keys.legall[0]: `legall` is no tenant of this policy"
    ]


def test_what_cannot_be_enforced_is_refused() -> None:
    """A limit that is read and then not kept would be worse than none."""
    source = (
        f"auth: {{keys: {{a: [{A}]}}, jwt: {{issuer: x}}}}\ntiers: {{gold: {{}}}}\n"
        "tenants: {a: {rpm: 5, tier: gold}}\ndefaults: {max_tokens: 5}\n"
    )
    assert faults(source) == [
        "tiers: not enforced by this version",
        "defaults.max_tokens: not enforced by this version",
        "tenants.a.tier: not enforced by this version",
        "tenants.a.rpm: not enforced by this version",
        "auth.jwt: not enforced by this version",
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "auth: is missing: without keys nobody can be told apart"),
        ("auth: {}", "auth.keys: is missing, and so is keys_dir: nobody could be let in"),
        ("auth: {keys_dir: nowhere}", "auth.keys_dir: there is no folder `nowhere`"),
        ("auth: {keys: {a: [sk-123]}}", "auth.keys.a[0]: must be the sha256 of a key: 64 hexadecimal digits"),
        ("auth: {kesy: {}}", "auth.kesy: unknown key (did you mean `keys`?)"),
        ("auth: {keys: {a: x}}", "auth.keys.a: must be a list, not a text"),
        ("auth: [", "line 1, column 8: expected the node content, but found '<stream end>'"),
    ],
)
def test_a_bad_policy_is_refused(source: str, words: str) -> None:
    """With the path and the word that is wrong."""
    assert words in faults(source)


def test_digests_do_not_show() -> None:
    """A policy in a log or a traceback tells no digest."""
    assert A not in repr(policy(f"auth: {{keys: {{a: [{A}]}}}}"))
