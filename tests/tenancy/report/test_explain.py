"""What a tenant gets is told in the words of the policy."""

from tenancy.report.explain import PolicyChange, PolicyField, differences, explain, fields_of, lines_of, shown
from tests.tenancy.policies import A, B, policy
from tests.tenancy.report.sample import POLICY


def test_caches_are_reported_as_stated() -> None:
    """Whatever the domain is called."""
    for stated in ("tenant", "shared", "law", "tenant:b"):
        found = policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{cache_isolation: '{stated}'}}}}")
        assert PolicyField("cache_isolation", stated) in fields_of(found.tenants["a"])


def test_values_are_reported_as_people_read_them() -> None:
    """What is infinite is no promise; lists have an order."""
    reported = [
        shown(value) for value in (None, True, 0.5, float("inf"), {"b": "c", "a": "d"}, frozenset("ba"), (), 7, "x")
    ]
    assert reported == ["none", "yes", "0.5", "none", "a -> d, b -> c", "a, b", "none", "7", "x"]


def reported(source: str, tenant: str) -> dict[str, tuple[str, str, int]]:
    return {one.field: (one.value, one.path, one.line) for one in explain(source, policy(source), tenant)}


def test_every_fact_has_its_line() -> None:
    """The tenant's own, what is usual, its tier's (merged ones too), or nobody's."""
    found = reported(POLICY, "legal")
    assert found["tier"] == ("silver", "tenants.legal.tier", 18)
    assert found["tier.priority"] == ("5", "tiers.silver.priority", 9)
    assert found["tier.ttft_s"] == ("0.8", "tiers.silver.ttft_s", 6)
    assert found["tier.tpot_s"] == ("none", "", 0)
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
    found = reported(POLICY, "search")
    assert "rpm" not in found
    assert "per_user.rpm" not in found
    assert found["per_user.tpm"] == ("7", "tenants.search.per_user.tpm", 25)


def test_an_empty_text_has_no_lines() -> None:
    """Nor any fault."""
    assert lines_of("") == {}


def test_equal_policies_do_not_differ() -> None:
    """However they are written."""
    assert list(differences(policy(POLICY), policy(POLICY.replace("rpm: 100", "rpm: '100'")))) == []


def test_differences_are_reported_by_tenant() -> None:
    """What comes, what goes, what it is from and to; keys by their names, never by their digests."""
    new = (
        POLICY.replace("rpm: 100", "rpm: 50").replace("  search:", "  research:").replace(f"search: [{B}]", "")
        + "headers: {tenant: x-team, user: []}\n"
    ).replace("bronze: {priority: 0}", "bronze: {priority: 0, guaranteed_share: 0.1}")
    found = list(differences(policy(POLICY), policy(new)))
    assert PolicyChange("legal", "rpm", "100", "50") in found
    assert PolicyChange("search", "tenant", "present", "removed") in found
    assert PolicyChange("research", "tenant", "absent", "added") in found
    assert PolicyChange("search", f"key {B[:12]}", "no expiry", "none") in found
    assert [change.field for change in found if not change.tenant] == ["headers", "tiers.bronze.guaranteed_share"]
    assert B not in str(found)


def test_ends_and_tokens_are_reported() -> None:
    """A key's end in words that people read; of tokens what is read from them."""
    old = policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{}}}}")
    jwt = "jwt: {issuer: 'https://sso.example', audiences: [h], tenant_claim: team}"
    new = policy(
        f"auth: {{keys: {{a: [{{digest: {A}, expires_at: 2026-12-01, user: ann}}]}}, {jwt}}}\ntenants: {{a: {{}}}}"
    )
    found = {change.field: change.after for change in differences(old, new)}
    assert found[f"key {A[:12]}"] == "expires 2026-12-01 00:00Z, user ann"
    assert (found["jwt.issuer"], found["jwt.claims"]) == ("https://sso.example", "sub, team")
