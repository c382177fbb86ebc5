"""A policy of an earlier version is rejected, and each fault names the new key."""

from __future__ import annotations

import pytest

from tenancy.policy import KeyFile
from tests.tenancy.policies import A, faults, policy

AUTH = f"auth: {{keys: {{a: [{A}]}}}}\n"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("tiers: {x: {ttft_ms: 800}}", "tiers.x.ttft_ms: renamed to `ttft_s`, a number of seconds: divide by 1000"),
        ("tiers: {x: {batch: true}}", "tiers.x.batch: renamed to `best_effort`"),
        ("defaults: {min_rung: a}", "defaults.min_rung: renamed to `cascade_min_model`"),
        ("tenants: {a: {prefer: cost}}", "tenants.a.prefer: renamed to `cascade_prefer`"),
        ("tenants: {a: {hedge: true}}", "tenants.a.hedge: removed: requests are no longer hedged; delete this key"),
        ("tenants: {a: {hedge: }}", "tenants.a.hedge: removed: requests are no longer hedged; delete this key"),
    ],
)
def test_a_fault_names_the_new_key(source: str, fault: str) -> None:
    """And the unit, where it changed; it is the only fault."""
    assert faults(AUTH + source) == [fault]


def test_an_api_key_expires_under_a_new_name() -> None:
    """Inline and in a key file."""
    assert faults(f"auth: {{keys: {{a: [{{digest: {A}, until: 2026-12-01}}]}}}}") == [
        "auth.keys.a[0].until: renamed to `expires_at`"
    ]
    file = KeyFile("a", "k1", f"{A} until=2026-12-01")
    assert faults("auth: {keys_dir: keys}", file) == ["keys/a/k1: `until` was renamed to `expires_at`"]


@pytest.mark.parametrize(
    ("key", "milliseconds", "most"), [("ttft_s", 800, 600), ("tpot_s", 40, 10), ("max_queue_s", 20_000, 3600)]
)
def test_milliseconds_are_not_taken_for_seconds(key: str, milliseconds: int, most: int) -> None:
    """The largest number that is accepted is one of seconds."""
    assert getattr(policy(f"{AUTH}tiers: {{x: {{{key}: {most}}}}}").tiers["x"], key) == most
    assert faults(f"{AUTH}tiers: {{x: {{{key}: {milliseconds}}}}}") == [
        f"tiers.x.{key}: must be a number of seconds, at most {most}; {milliseconds} looks like milliseconds"
    ]
