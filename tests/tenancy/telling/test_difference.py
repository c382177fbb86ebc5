"""What changes for whom between two policies."""

from tenancy.telling.difference import Change, differences
from tests.tenancy.policies import A, B, policy
from tests.tenancy.telling.sample import POLICY


def test_equal_policies_do_not_differ() -> None:
    """However they are written."""
    assert list(differences(policy(POLICY), policy(POLICY.replace("rpm: 100", "rpm: '100'")))) == []


def test_differences_are_told_by_tenant() -> None:
    """What comes, what goes, what it is from and to; keys by their names, never by their digests."""
    new = (
        POLICY.replace("rpm: 100", "rpm: 50").replace("  search:", "  research:").replace(f"search: [{B}]", "")
        + "headers: {tenant: x-team, user: []}\n"
    ).replace("bronze: {priority: 0}", "bronze: {priority: 0, reserve: 0.1}")
    found = list(differences(policy(POLICY), policy(new)))
    assert Change("legal", "rpm", "100", "50") in found
    assert Change("search", "tenant", "was", "gone") in found
    assert Change("research", "tenant", "none", "new") in found
    assert Change("search", f"key {B[:12]}", "good", "none") in found
    assert [change.word for change in found if not change.whose] == ["headers", "tiers.bronze.reserve"]
    assert B not in str(found)


def test_ends_and_tokens_are_told() -> None:
    """A key's end in words that people read; of tokens what is read from them."""
    old = policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{}}}}")
    jwt = "jwt: {issuer: 'https://sso.example', audiences: [h], tenant_claim: team}"
    new = policy(f"auth: {{keys: {{a: [{{digest: {A}, until: 2026-12-01, user: ann}}]}}, {jwt}}}\ntenants: {{a: {{}}}}")
    found = {change.word: change.after for change in differences(old, new)}
    assert found[f"key {A[:12]}"] == "until 2026-12-01 00:00Z, user ann"
    assert (found["jwt.issuer"], found["jwt.claims"]) == ("https://sso.example", "sub, team")
