"""A tenant knows which models it may use."""

from tenancy.tenants import ANONYMOUS, Tenant


def test_a_tenant_without_a_list_may_use_every_model() -> None:
    """No list means all models; the anonymous tenant has none."""
    assert Tenant("search").may_use("any")
    assert ANONYMOUS.name is None
    assert ANONYMOUS.may_use("any")


def test_a_list_binds() -> None:
    """Only what is named may be used; an empty list names nothing."""
    assert Tenant("legal", frozenset({"a"})).may_use("a")
    assert not Tenant("legal", frozenset({"a"})).may_use("b")
    assert not Tenant("legal", frozenset()).may_use("a")
