"""What a tenant gets is told in the words of the policy."""

from tenancy.telling.facts import Fact, facts, shown
from tests.tenancy.policies import A, policy


def test_caches_are_told_as_they_are_said() -> None:
    """Whatever the domain is called."""
    for said in ("tenant", "shared", "law", "tenant:b"):
        found = policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{cache_isolation: '{said}'}}}}")
        assert Fact("cache_isolation", said) in facts(found.tenants["a"])


def test_values_are_told_as_people_read_them() -> None:
    """What is infinite is no promise; lists have an order."""
    told = [
        shown(value) for value in (None, True, 0.5, float("inf"), {"b": "c", "a": "d"}, frozenset("ba"), (), 7, "x")
    ]
    assert told == ["none", "yes", "0.5", "none", "a -> d, b -> c", "a, b", "none", "7", "x"]
