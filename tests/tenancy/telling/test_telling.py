"""What a policy means, told: facts with their lines, differences, and a trial on requests that were."""

from hashlib import sha256

from tenancy.limits.use import Rates
from tenancy.policy import Bare, Policy
from tenancy.reading.policy import read_policy
from tenancy.telling.difference import Change, differences
from tenancy.telling.explain import explain, lines_of
from tenancy.telling.facts import Fact, facts
from tenancy.telling.trial import Past, try_on

A, B = sha256(b"a").hexdigest(), sha256(b"b").hexdigest()

POLICY = f"""\
auth:
  keys: {{legal: [{A}], search: [{B}]}}
tiers:
  gold: &usual
    priority: 10
    ttft_ms: 800
  silver:
    <<: *usual
    priority: 5
    on_overload: relax
  bronze: {{priority: 0}}
defaults:
  models: [small]
  rpm: 100
  per_user: {{rpm: 5}}
tenants:
  legal:
    tier: silver
    models: [small, big]
    aliases: {{gpt: big}}
    cache_isolation: law
    max_budget: 5.5
    groups: {{interns: {{tpm: 9}}}}
  search:
    per_user: {{tpm: 7}}
    rpm: off
"""


def read(source: str) -> Policy:
    return read_policy(source, {}, Bare())


def told(source: str, tenant: str) -> dict[str, tuple[str, str, int]]:
    return {one.word: (one.value, one.path, one.line) for one in explain(source, read(source), tenant)}


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


def test_caches_are_told_as_they_are_said() -> None:
    """Whatever the domain is called."""
    for said in ("tenant", "shared", "law", "tenant:b"):
        policy = read(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{cache_isolation: '{said}'}}}}")
        assert Fact("cache_isolation", said) in facts(policy.tenants["a"])


def test_an_empty_text_has_no_lines() -> None:
    """Nor any fault."""
    assert lines_of("") == {}


def test_equal_policies_do_not_differ() -> None:
    """However they are written."""
    assert list(differences(read(POLICY), read(POLICY.replace("rpm: 100", "rpm: '100'")))) == []


def test_differences_are_told_by_tenant() -> None:
    """What comes, what goes, what it is from and to; keys by their names, never by their digests."""
    new = (
        POLICY.replace("rpm: 100", "rpm: 50").replace("  search:", "  research:").replace(f"search: [{B}]", "")
        + "headers: {tenant: x-team, user: []}\n"
    )
    found = list(differences(read(POLICY), read(new)))
    assert Change("legal", "rpm", "100", "50") in found
    assert Change("search", "tenant", "was", "gone") in found
    assert Change("research", "tenant", "none", "new") in found
    assert Change("search", f"key {B[:12]}", "good", "none") in found
    assert [change.word for change in found if not change.whose] == ["headers"]
    assert B not in str(found)


def test_ends_and_tokens_are_told() -> None:
    """A key's end in words that people read; of tokens what is read from them."""
    old = read(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{}}}}")
    jwt = "jwt: {issuer: 'https://sso.example', audiences: [h], tenant_claim: team}"
    new = read(f"auth: {{keys: {{a: [{{digest: {A}, until: 2026-12-01, user: ann}}]}}, {jwt}}}\ntenants: {{a: {{}}}}")
    found = {change.word: change.after for change in differences(old, new)}
    assert found[f"key {A[:12]}"] == "until 2026-12-01 00:00Z, user ann"
    assert (found["jwt.issuer"], found["jwt.claims"]) == ("https://sso.example", "sub, team")


def limited(words: str) -> Policy:
    return read(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{models: [m], aliases: {{alias: m}}, {words}}}}}")


def burst(count: int, **words: float) -> list[Past]:
    return [Past(1_800_000_000.0 + at, "a", "m", **words) for at in range(count)]  # type: ignore[arg-type]


def test_a_trial_says_who_would_have_been_refused() -> None:
    """By reason; an alias is the model that it means."""
    policy = limited("rpm: 3")
    past = [*burst(5), Past(1_800_000_100.0, "a", "alias"), Past(1.9e9, "a", "other"), Past(1.9e9, "b", "m")]
    fates = try_on(policy, past)
    assert (fates["a"].requests, fates["a"].refused) == (7, {"requests": 2, "model_not_allowed": 1})
    assert (fates["b"].requests, fates["b"].refused) == (1, {"unknown tenant": 1})


def test_a_trial_goes_by_tokens_time_and_money() -> None:
    """As they were recorded: what lasted is at one time, what cost is paid."""
    assert try_on(limited("tpm: 100"), burst(4, input_tokens=30, output_tokens=10))["a"].refused == {"tokens": 2}
    assert try_on(limited("max_parallel_requests: 2"), burst(6, duration_s=3.0))["a"].refused == {
        "parallel_requests": 2
    }
    spent = try_on(limited("max_budget: 1"), burst(4, output_tokens=10), lambda _: Rates(output=0.04))
    assert spent["a"].refused == {"budget": 2}


def test_users_have_limits_of_their_own_in_a_trial() -> None:
    """Where the record names them."""
    past = [Past(1_800_000_000.0 + at, "a", "m", user=user) for at, user in enumerate("xxxy")]
    assert try_on(limited("per_user: {rpm: 2}"), past)["a"].refused == {"requests": 1}
