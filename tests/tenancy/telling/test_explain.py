"""Every fact about a tenant has the line that says so."""

from tenancy.telling.explain import explain, lines_of
from tests.tenancy.policies import policy
from tests.tenancy.telling.sample import POLICY


def told(source: str, tenant: str) -> dict[str, tuple[str, str, int]]:
    return {one.word: (one.value, one.path, one.line) for one in explain(source, policy(source), tenant)}


def test_every_fact_has_its_line() -> None:
    """The tenant's own, what is usual, its tier's (merged ones too), or nobody's."""
    found = told(POLICY, "legal")
    assert found["tier"] == ("silver", "tenants.legal.tier", 18)
    assert found["tier.priority"] == ("5", "tiers.silver.priority", 9)
    assert found["tier.ttft_ms"] == ("800", "tiers.silver.ttft_ms", 6)
    assert found["tier.tpot_ms"] == ("none", "", 0)
    assert found["on_overload"] == ("relax", "tiers.silver.on_overload", 10)
    assert found["models"] == ("big, small", "tenants.legal.models", 19)
    assert found["aliases"] == ("gpt -> big", "tenants.legal.aliases", 20)
    assert found["cache_isolation"] == ("law", "tenants.legal.cache_isolation", 21)
    assert found["rpm"] == ("100", "defaults.rpm", 14)
    assert (found["max_budget"][0], found["budget_duration"]) == ("5.5", ("86400s", "", 0))
    assert found["per_user.rpm"] == ("5", "defaults.per_user.rpm", 15)
    assert found["groups.interns.tpm"] == ("9", "tenants.legal.groups.interns.tpm", 23)


def test_a_limit_that_is_off_is_no_fact() -> None:
    """And a table of its own stands in place of the usual one."""
    found = told(POLICY, "search")
    assert "rpm" not in found
    assert "per_user.rpm" not in found
    assert found["per_user.tpm"] == ("7", "tenants.search.per_user.tpm", 25)


def test_an_empty_text_has_no_lines() -> None:
    """Nor any fault."""
    assert lines_of("") == {}
