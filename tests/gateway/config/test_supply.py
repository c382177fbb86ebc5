"""The section `supply`: modes and guard rails with clear faults, the listener, and pools that may have no pod."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gateway.config.loading import check_file
from gateway.config.settings import read_settings, show_settings
from routing.facts import Role
from supply.policy import ControlMode
from tenancy.document import InvalidDocument

RAILS = "{min_engines: 0, max_engines: 4, max_step_per_minute: 2, engine_hours_per_day: 96}"


def test_it_is_off_unless_configured_and_advises_by_default() -> None:
    """`supply: true` computes and shows figures; nothing acts on them."""
    assert read_settings("{}", {})[0].supply is None
    assert read_settings("supply: false", {})[0].supply is None
    supply = read_settings("supply: true", {})[0].supply
    assert supply is not None
    assert supply.is_on
    assert supply.policy.scaling is ControlMode.ADVISE
    off = read_settings("supply: {scaling: off}", {})[0].supply
    assert off is not None
    assert not off.is_on


def test_all_keys_are_read() -> None:
    """Of the policy and of the gateway; numbers may come from variables."""
    settings, table = read_settings(
        f"supply: {{scaling: act, listen: '0.0.0.0:9772', min_gateways: 2, idle_to_zero_s: '${{QUIET}}', "
        f"pools: {{default: {RAILS}}}}}",
        {"QUIET": "60"},
    )
    assert table.errors == []
    supply = settings.supply
    assert supply is not None
    assert str(supply.listen) == "0.0.0.0:9772"
    assert supply.min_gateways == 2
    assert supply.policy.idle_to_zero_s == 60
    assert supply.policy.rails("any").max_engines == 4
    shown = show_settings(settings)["supply"]
    assert isinstance(shown, dict)
    assert shown["policy"]["pools"]["default"]["max_engines"] == 4
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("supply: {scaling: acts}", "supply.scaling"),
        ("supply: {scaling: act, pools: {a: {min_engines: 1}}}", "supply.pools.a.max_engines"),
        ("supply: {pools: {a: {min_engine: 1}}}", "supply.pools.a.min_engine"),
        ("supply: {listen: nowhere}", "supply.listen"),
        ("supply: {interval: 3}", "supply.interval"),
        ("supply: {min_gateways: 0}", "supply.min_gateways"),
        ("pools: [{name: a, cost_per_engine_hour: 1, role: both}]", "pools[0].role"),
        ("pools: [{name: a, cost_per_engine_hour: 1, start_s: 0}]", "pools[0].start_s"),
    ],
)
def test_a_fault_names_its_key(written: str, path: str) -> None:
    """A guard rail that `act` needs, an unknown key, a wrong value."""
    _, table = read_settings(written, {})
    assert path in [fault.path for fault in table.errors]


def test_a_pool_says_what_it_serves_while_it_has_no_pod() -> None:
    """Model, role, start, rank, place."""
    settings, table = read_settings(
        "pools: [{name: a, cost_per_engine_hour: 2, model: big, role: decode, start_s: 90, rank: 1, region: eu, "
        "distance_s: 0.02}]",
        {},
    )
    assert table.errors == []
    (pool,) = settings.pools
    assert (pool.model, pool.role, pool.start_s, pool.rank, pool.region, pool.distance_s) == (
        *("big", Role.DECODE, 90.0, 1, "eu", 0.02),
    )


def test_a_pool_from_zero_needs_its_model_in_the_list(tmp_path: Path) -> None:
    """Otherwise its first request is answered as one for an unknown model."""
    config = tmp_path / "hearth.yaml"
    text = (
        "discovery: {static: {pods: ['http://127.0.0.1:1']}}\n"
        "pools: [{name: a, cost_per_engine_hour: 2, model: big}]\n"
        f"supply: {{scaling: act, pools: {{a: {RAILS}}}}}\n"
    )
    config.write_text(text)
    with pytest.raises(InvalidDocument) as caught:
        check_file(config, {})
    assert "`big` is not in model_list" in str(caught.value)
    config.write_text(text + "model_list: [{model_name: big}]\n")
    assert check_file(config, {}).supply is not None


def test_the_port_must_be_free_of_the_others(tmp_path: Path) -> None:
    """As of all listeners."""
    config = tmp_path / "hearth.yaml"
    config.write_text("supply: {listen: '127.0.0.1:9464'}\n")
    with pytest.raises(InvalidDocument) as caught:
        check_file(config, {})
    assert "supply.listen" in str(caught.value)
