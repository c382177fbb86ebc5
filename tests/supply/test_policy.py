"""The supply section: modes, guard rails, and faults that name their field."""

from __future__ import annotations

import pytest

from supply.policy import ControlMode, GuardRails, InvalidSupplyPolicy, SupplyPolicy, read_supply_policy

RAILS = {"min_engines": 1, "max_engines": 8, "max_step_per_minute": 2, "engine_hours_per_day": 100}


def faults(given: dict[str, object], pools: frozenset[str] = frozenset()) -> list[str]:
    with pytest.raises(InvalidSupplyPolicy) as caught:
        read_supply_policy(given, pools=pools)
    return [str(fault) for fault in caught.value.faults]


def test_everything_advises_by_default() -> None:
    """An empty section acts on nothing."""
    policy = read_supply_policy({})
    assert policy == SupplyPolicy()
    assert {policy.scaling, policy.spill, policy.prewarm, policy.role_switch, policy.drain} == {ControlMode.ADVISE}


def test_a_full_section_is_read() -> None:
    """`off` may be what YAML 1.1 makes of it."""
    policy = read_supply_policy(
        {"scaling": "act", "spill": False, "down_after_s": 60, "pools": {"h100": RAILS}}, pools=frozenset(("h100",))
    )
    assert policy.scaling is ControlMode.ACT
    assert policy.spill is ControlMode.OFF
    assert policy.down_after_s == 60.0
    assert policy.rails("h100") == GuardRails(1, 8, 2, 100.0)
    assert policy.rails("other") == GuardRails()


def test_act_needs_every_guard_rail_of_every_pool() -> None:
    """Of pools that are known but not named, too; `default` serves all."""
    some: dict[str, object] = {"scaling": "act", "pools": {"h100": {"min_engines": 1, "max_engines": 2}}}
    found = faults(some, frozenset(("cloud",)))
    assert [fault.partition(": ")[0] for fault in found] == [
        *(f"supply.pools.cloud.{name}" for name in RAILS),
        "supply.pools.h100.max_step_per_minute",
        "supply.pools.h100.engine_hours_per_day",
    ]
    assert "scaling: advise" in found[0]
    policy = read_supply_policy({"scaling": "act", "pools": {"default": RAILS}}, pools=frozenset(("cloud",)))
    assert policy.rails("cloud").max_engines == 8


def test_act_without_any_pool_names_the_default() -> None:
    """There is a place to write the rails."""
    assert faults({"scaling": "act"})[0].startswith("supply.pools.default.min_engines: is required")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"scaling": "yes"}, "supply.scaling"),
        ({"sacling": "act"}, "supply.sacling"),
        ({"down_after_s": -1}, "supply.down_after_s"),
        ({"probability": 1.0}, "supply.probability"),
        ({"use_forecast": "no"}, "supply.use_forecast"),
        ({"pools": []}, "supply.pools"),
        ({"pools": {"a": 3}}, "supply.pools.a"),
        ({"pools": {"a": {"max": 3}}}, "supply.pools.a.max"),
        ({"pools": {"a": {"min_engines": True}}}, "supply.pools.a.min_engines"),
        ({"pools": {"a": {"min_engines": 3, "max_engines": 2}}}, "supply.pools.a.min_engines"),
        ({"pools": {"a": {"max_step_per_minute": 0}}}, "supply.pools.a.max_step_per_minute"),
        ({"pools": {"a": {**RAILS, "engine_hours_per_day": 23}}}, "supply.pools.a.engine_hours_per_day"),
    ],
)
def test_a_fault_names_its_field(given: dict[str, object], path: str) -> None:
    """One line for each fault, with the path first."""
    assert [fault.partition(": ")[0] for fault in faults(given)] == [path]
