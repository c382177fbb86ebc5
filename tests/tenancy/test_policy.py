"""A policy keeps its secrets to itself, and arrives at other processes as it was."""

import pickle

from tenancy.policy import HeaderRules, KeyFile
from tests.tenancy.policies import KEYED, TIERS, A, policy


def test_digests_and_secrets_do_not_show() -> None:
    """A policy in a log or a traceback tells none."""
    secret = "a-very-long-secret"
    found = policy(f"auth: {{hmac_secret: {secret}, keys: {{a: [{A}]}}}}")
    assert A not in repr(found)
    assert secret not in repr(found)
    assert A not in repr(KeyFile("a", "b", A))


def test_a_policy_can_be_sent_to_workers() -> None:
    """It arrives as it was."""
    found = policy(KEYED + TIERS + "tenants: {a: {tier: gold, aliases: {x: y}}, b: {groups: {c: {rpm: 5}}}}")
    assert pickle.loads(pickle.dumps(found)) == found


def test_headers_are_named_in_one_row() -> None:
    """All that a proxy may say, whatever it says."""
    rules = HeaderRules(tenant=("x-a",), group=("x-b",), user=(), objective=("x-c", "x-d"), priority=())
    assert rules.names == ("x-a", "x-b", "x-c", "x-d")
