"""Renamed keys are rewritten in place; what moved is left with its fault; a current file stays as it is."""

import pytest

from gateway.config.migrating import migrate
from gateway.config.renamed_keys import RENAMED_KEYS
from gateway.config.settings import read_settings
from tenancy.document import InvalidValue
from tenancy.policy import InlineFiles
from tenancy.reading.policy import read_policy

OLD = """\
# The gateway.
listen: 127.0.0.1:8000   # clients
metrics: 127.0.0.1:9464
kv_events: {wait_ms: 20, load_us_per_token: {cpu: 10}}
stalls:
  times: 4               # of the usual
  least_s: 10
retries: {attempts: 3}
timeouts: {header_s: 10, drain_s: 30}
"""


def test_keys_and_units_are_rewritten_in_place() -> None:
    """Comments and order stay, and the reader accepts the result."""
    text, count = migrate(OLD)
    assert text == (
        OLD.replace("metrics:", "metrics_listen:")
        .replace("wait_ms: 20", "max_wait_s: 0.02")
        .replace("load_us_per_token: {cpu: 10}", "load_s_per_token: {cpu: 1e-05}")
        .replace("stalls:", "stall_detection:")
        .replace("times: 4", "factor: 4")
        .replace("least_s: 10", "engine_min_s: 10")
        .replace("attempts:", "max_attempts:")
        .replace("header_s:", "request_header_s:")
    )
    assert count == 8
    assert read_settings(text, {})[1].errors == []
    assert migrate(text) == (text, 0)


def test_a_policy_is_rewritten_too() -> None:
    """Tiers, tenants and defaults, each by its own names."""
    old = """\
auth: {default_tenant: a}
tiers: {gold: {ttft_ms: 800, reserve: 0.4, max_queue_ms: 500}}
defaults: {tier: gold, max_rung: large}
tenants: {a: {prefer: quality}}
"""
    text, count = migrate(old)
    assert count == 5
    assert "gold" in read_policy(text, {}, InlineFiles()).tiers
    assert "ttft_s: 0.8, guaranteed_share: 0.4, max_queue_s: 0.5" in text


def test_what_moved_to_another_section_is_left() -> None:
    """Its fault says where it belongs."""
    text, count = migrate("model_list: [{model_name: a, calibration: b.json}]\n")
    assert (text, count) == ("model_list: [{model_name: a, calibration: b.json}]\n", 0)
    assert any("renamed" in str(fault) for fault in read_settings(text, {})[1].errors)


def test_renamed_keys_are_rewritten() -> None:
    """Each key of the table but those that moved or were removed."""
    rewritten = 0
    for old, new in RENAMED_KEYS.items():
        if new is None:
            continue
        lines = [f"{'  ' * depth}{word}:" for depth, word in enumerate(old.split("."))]
        rewritten += migrate("\n".join(lines) + " 1\n")[1] > 0
    assert rewritten > 0.8 * len(RENAMED_KEYS)


def test_what_is_no_yaml_is_named() -> None:
    """Nothing is written then."""
    with pytest.raises(InvalidValue, match="is not YAML"):
        migrate("a: [")


def test_what_aliases_repeat_is_rewritten_once() -> None:
    """It stands in the text once; aliases that multiply are rejected before they are followed."""
    assert (
        migrate("stalls: &s {times: 4}\nx: {stalls: *s}\n")[0] == "stall_detection: &s {factor: 4}\nx: {stalls: *s}\n"
    )
    old = "kv_events: &k {wait_ms: 20}\n" + "kv_events: *k\n" * 2
    assert migrate(old)[0].count("max_wait_s: 0.02}") == 1
    bomb = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
    with pytest.raises(InvalidValue, match="aliases repeat"):
        migrate(bomb)
    with pytest.raises(InvalidValue, match="is not YAML"):
        migrate("a: &a [*a]\n")
