"""A quota knows whether it limits anything."""

import pytest

from tenancy.tenants import ANONYMOUS_CALLER, ANONYMOUS_TENANT, UNLIMITED, Account, Quota, Tenant, quota_of, renewed


def test_without_limits_nothing_is_rejected() -> None:
    """That is what is usual."""
    assert UNLIMITED.is_unlimited
    assert Quota() == UNLIMITED


@pytest.mark.parametrize(
    "quota",
    [Quota(requests_per_min=1), Quota(parallel_requests=1), Quota(budget=0.5), Quota(uncached_tokens_per_min=1)],
)
def test_any_limit_limits(quota: Quota) -> None:
    """Whichever it is."""
    assert not quota.is_unlimited


MANY, FEW, ONE = Quota(requests_per_min=100), Quota(requests_per_min=10), Quota(requests_per_min=1)


def test_a_tenant_without_a_list_may_use_every_model() -> None:
    """No list means all models; the anonymous tenant has none."""
    assert Tenant("search").may_use("any")
    assert ANONYMOUS_TENANT.name is None
    assert ANONYMOUS_TENANT.may_use("any")


def test_a_list_binds() -> None:
    """Only what is named may be used; an empty list names nothing."""
    assert Tenant("legal", frozenset({"a"})).may_use("a")
    assert not Tenant("legal", frozenset({"a"})).may_use("b")
    assert not Tenant("legal", frozenset()).may_use("a")


def test_a_caller_draws_on_all_that_have_limits() -> None:
    """The tenant's own first, then its group's, then its user's."""
    tenant = Tenant("search", quota=MANY, per_user=ONE, groups={"interns": FEW})
    caller = tenant.caller(group="interns", user="ann")
    assert caller.accounts == (
        Account("search", MANY),
        Account("search/group/interns", FEW),
        Account("search/user/ann", ONE),
    )
    assert (caller.tenant, caller.group, caller.user) == (tenant, "interns", "ann")


def test_what_has_no_limits_has_no_account() -> None:
    """Nothing need be reserved there: a group without limits, users without limits, nobody."""
    assert Tenant("search", quota=MANY).caller(group="staff", user="ann").accounts == (Account("search", MANY),)
    assert Tenant("search").caller(key_id="k1").accounts == ()
    assert ANONYMOUS_CALLER.accounts == ()


def test_a_key_that_names_no_one_is_a_user_by_itself() -> None:
    """Else limits per user would not bind its holder."""
    assert Tenant("search", per_user=ONE).caller(key_id="k1").accounts == (Account("search/user/k1", ONE),)
    assert Tenant("search", per_user=ONE).caller(key_id="k1", user="ann").accounts == (Account("search/user/ann", ONE),)


def test_the_path_of_an_account_leads_back_to_its_quota() -> None:
    """Whatever a user is called; None where there is no such tenant any more."""
    tenants = {"search": Tenant("search", quota=MANY, per_user=ONE, groups={"interns": FEW})}
    for user in ("ann", "group/interns", "a/b/", "user"):
        for account in tenants["search"].caller(group="interns", user=user).accounts:
            assert quota_of(tenants, account.path) is account.quota
    assert quota_of(tenants, "search/group/gone") is UNLIMITED
    assert quota_of(tenants, "gone/user/ann") is None


def test_a_caller_is_held_to_the_policy_in_force() -> None:
    """With the accounts that it has there; one that came under this policy, in whatever tier, stays as it is."""
    old = Tenant("search").caller(key_id="k1", user="ann")
    new = {"search": Tenant("search", quota=FEW, per_user=ONE)}
    assert renewed(new, old).accounts == (Account("search", FEW), Account("search/user/ann", ONE))
    assert renewed(new, old).tenant is old.tenant
    current = new["search"].caller(user="ann")
    assert renewed(new, current) is current
    assert renewed({}, current) is current
