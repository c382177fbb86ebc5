"""A key is looked up by its digest; without a policy everybody is welcome, with one nobody is by default."""

import hmac
from hashlib import sha256

import pytest

from gateway.identity.keyring import Keyring
from routing.rejection import Reason, RequestRejected
from tenancy.policy import HMAC, InlineFiles, KeyFile, Policy
from tenancy.reading.policy import read_policy
from tenancy.tenants import ANONYMOUS_CALLER, Account, Quota

TIERED = """
tiers: {gold: {priority: 10}, silver: {priority: 5, on_overload: relax}, bronze: {priority: -10}}
tenants:
  legal: {tier: gold, groups: {interns: {rpm: 5}}, per_user: {rpm: 2}}
  search: {}
headers: {tenant: x-team, group: x-group, user: x-user, objective: x-objective, priority: x-priority}
"""


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def policy(source: str, **keys: str) -> Policy:
    """With a key file for each tenant: what it holds."""
    return read_policy(source, {}, InlineFiles(*(KeyFile(tenant, "k1", held) for tenant, held in keys.items())))


def legal(extra: str = "") -> Policy:
    return policy("auth: {keys_dir: keys}\n" + extra, legal=digest("sk-1"))


def rejection(keyring: Keyring, key: str | None, spoken: dict[bytes, bytes] | None = None) -> RequestRejected:
    with pytest.raises(RequestRejected) as rejected:
        keyring.identify(key, spoken)
    return rejected.value


def test_without_a_policy_no_caller_is_identified() -> None:
    """Whatever key is shown."""
    assert Keyring().identify(None) is ANONYMOUS_CALLER
    assert Keyring().identify("sk-anything") is ANONYMOUS_CALLER


def test_a_known_key_leads_to_its_caller() -> None:
    """By the sha256 of its bytes."""
    caller = Keyring(legal()).identify("sk-1")
    assert (caller.tenant.name, caller.key_id) == ("legal", "k1")


@pytest.mark.parametrize("key", [None, "", "sk-2", "sk-1 ", "\udcff", digest("sk-1"), "x" * 100_000, "a.b.c"])
def test_any_other_key_is_rejected(key: str | None) -> None:
    """None, empty, unknown, odd bytes, the digest itself, far too long, and what looks like a token."""
    rejected = rejection(Keyring(legal()), key)
    assert rejected.reason is Reason.INVALID_KEY
    assert not key or key not in rejected.message


def test_what_is_far_too_long_is_not_hashed() -> None:
    """Megabytes of headers are somebody's try, not a key."""
    assert "too long" in rejection(Keyring(legal()), "x" * 20_000).message


def test_a_key_ends_when_it_was_set_to() -> None:
    """Its last second is good, its end is not."""
    now_s = 1_796_083_199.0
    keyring = Keyring(
        policy("auth: {keys_dir: k}", legal=f"{digest('sk-1')} expires_at=2026-12-01"), None, lambda: now_s
    )
    assert keyring.identify("sk-1").tenant.name == "legal"
    now_s += 1
    assert "expired" in rejection(keyring, "sk-1").message


def test_a_digest_with_a_secret_needs_the_secret() -> None:
    """Plain digests stand beside it, as those of another gateway's keys do."""
    secret = "0123456789abcdef"
    keyed = HMAC + hmac.digest(secret.encode(), b"sk-weak", "sha256").hex()
    keyring = Keyring(policy(f"auth: {{hmac_secret: {secret}, keys_dir: k}}", legal=keyed, search=digest("sk-1")))
    assert keyring.identify("sk-weak").tenant.name == "legal"
    assert keyring.identify("sk-1").tenant.name == "search"
    other = Keyring(policy("auth: {hmac_secret: another-secret-it-is, keys_dir: k}", legal=keyed))
    assert rejection(other, "sk-weak").reason is Reason.INVALID_KEY


def test_who_shows_nothing_may_be_somebody() -> None:
    """Only where the policy says who; a wrong key is still wrong."""
    keyring = Keyring(legal("  \ntenants: {legal: {}, guest: {rpm: 5}}"))
    assert "No API key" in rejection(keyring, None).message
    keyring.policy = policy(
        "auth: {keys_dir: k, default_tenant: guest}\ntenants: {legal: {}, guest: {rpm: 5}}", legal=digest("sk-1")
    )
    assert keyring.identify(None).accounts == (Account("guest", Quota(requests_per_min=5)),)
    assert rejection(keyring, "sk-2").reason is Reason.INVALID_KEY


def test_a_trusted_proxy_says_who_calls() -> None:
    """Tenant, group and user; without a word of it the key counts."""
    keyring = Keyring(legal(TIERED))
    caller = keyring.identify(None, {b"x-team": b"legal", b"x-group": b"interns", b"x-user": b"ann"})
    assert (caller.tenant.name, caller.group, caller.user) == ("legal", "interns", "ann")
    assert [account.path for account in caller.accounts] == ["legal/group/interns", "legal/user/ann"]
    assert keyring.identify("sk-1", {b"x-team": b"search"}).tenant.name == "search"
    assert keyring.identify("sk-1", {}).key_id == "k1"
    assert keyring.identify("sk-1", {b"x-group": b"strangers"}).group is None
    assert "proxy" in rejection(keyring, "sk-1", {b"x-team": b"nobody"}).message
    assert "No API key" in rejection(keyring, None, {b"x-user": b"ann"}).message


def test_anybody_else_says_nothing() -> None:
    """Headers count from trusted proxies, and where the policy names them."""
    assert Keyring(legal(TIERED)).identify("sk-1", None).user is None
    unnamed = Keyring(legal("tenants: {legal: {}, search: {}}"))
    assert unnamed.identify("sk-1", {b"x-team": b"search", b"": b"search"}).tenant.name == "legal"


@pytest.mark.parametrize(
    ("spoken", "tier"),
    [
        ({b"x-objective": b"silver"}, "silver"),
        ({b"x-objective": b"platinum"}, "gold"),
        ({b"x-priority": b"7"}, "silver"),
        ({b"x-priority": b"-10"}, "bronze"),
        ({b"x-priority": b"-11"}, "gold"),
        ({b"x-priority": b"soon"}, "gold"),
        ({b"x-objective": b"bronze", b"x-priority": b"7"}, "bronze"),
    ],
)
def test_a_trusted_proxy_names_the_tier(spoken: dict[bytes, bytes], tier: str) -> None:
    """By name or by priority; what means nothing here changes nothing."""
    keyring = Keyring(legal(TIERED))
    caller = keyring.identify("sk-1", spoken)
    assert caller.tenant.tier.name == tier
    assert caller.tenant is keyring.identify("sk-1", spoken).tenant
    if tier == "silver":
        assert caller.tenant.relaxed is not None
        assert caller.tenant.relaxed.name == "bronze"


@pytest.mark.parametrize(
    ("key", "spoken", "tier"),
    [
        ("sk-1", {b"x-objective": b"batch"}, "bronze"),
        ("sk-1", {b"x-objective": b"chat"}, "silver"),
        ("sk-1", {b"x-objective": b"urgent"}, "gold"),
        ("sk-1", {b"x-objective": b"unknown"}, "gold"),
        ("sk-1", {b"x-objective": b"lowest"}, "gold"),
        ("sk-1", {b"x-objective": b"bronze"}, "bronze"),
        ("sk-1", {b"x-objective": b"urgent", b"x-priority": b"5"}, "silver"),
        ("sk-1", {b"x-objective": b"batch", b"x-priority": b"5"}, "bronze"),
        ("sk-1", None, "gold"),
        (None, {b"x-team": b"search", b"x-objective": b"urgent"}, "default"),
        (None, {b"x-team": b"search", b"x-objective": b"batch"}, "bronze"),
    ],
)
def test_an_objective_lowers_the_tier_and_never_raises_it(
    key: str | None, spoken: dict[bytes, bytes] | None, tier: str
) -> None:
    """It selects the highest tier of at most its priority; a tier of the policy with that name comes first."""
    keyring = Keyring(legal(TIERED))
    priorities = {"urgent": 100, "chat": 7, "batch": -5, "lowest": -99, "bronze": 100}
    keyring.use_objectives(priorities.get)
    assert keyring.identify(key, spoken).tenant.tier.name == tier


def test_llm_ds_headers_are_believed_from_trusted_proxies() -> None:
    """Unless the policy names others; the tenant by none that it does not name."""
    keyring = Keyring(legal("tiers: {gold: {priority: 1}}\ntenants: {legal: {}, search: {}}"))
    caller = keyring.identify(
        "sk-1",
        {
            b"x-llm-d-inference-objective": b"gold",
            b"x-hearth-objective": b"lead",
            b"x-gateway-inference-fairness-id": b"ann",
            b"x-hearth-tenant": b"search",
        },
    )
    assert (caller.tenant.name, caller.tenant.tier.name, caller.user) == ("legal", "gold", "ann")


def test_a_long_user_is_cut() -> None:
    """It becomes the name of an account."""
    user = Keyring(legal(TIERED)).identify("sk-1", {b"x-user": b"u" * 10_000}).user
    assert user == "u" * 256


def test_a_new_policy_is_in_force_at_once() -> None:
    """For who comes then; who came before keeps the tenant that it got."""
    keyring = Keyring(legal())
    before = keyring.identify("sk-1")
    keyring.policy = policy("auth: {keys_dir: k}\ntenants: {search: {rpm: 1}}", search=digest("sk-1"))
    assert keyring.identify("sk-1").tenant.name == "search"
    assert before.tenant.name == "legal"
