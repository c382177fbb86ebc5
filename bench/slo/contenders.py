"""Gateways that are started in front of simulated pods and played live, each with its own way to tell tiers apart."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

import yaml

from bench.overhead.gateways import free_port
from bench.routing.contenders import LOOPBACK, Program, Ready, pods_in_fleet, rust
from bench.slo.scenario import Customer, Scenario
from tenancy.objective import Tier
from tenancy.reading.fields import TIER


@dataclass(frozen=True, slots=True)
class SmgClass:
    """One of SMG's, with its defaults; not its floors, which are more slots than a fleet of few engines has."""

    name: str
    queue_size: int
    queue_timeout_secs: int
    starvation_threshold_secs: int
    can_preempt: bool

    def reserving(self, share: float) -> dict[str, object]:
        """As SMG reads it."""
        return {**asdict(self), "reserved_floor": 0, "reserved_per_slot": share}


SYSTEM = SmgClass("system", 64, 30, 5, can_preempt=True)

SMG_CLASSES = (
    SmgClass("interactive", 256, 30, 5, can_preempt=True),
    SmgClass("default", 512, 60, 30, can_preempt=False),
    SmgClass("bulk", 1024, 300, 120, can_preempt=False),
)
"""Best first. Above them is `system`, which is not for customers."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`lacks` says why it cannot be played here, empty where it can."""

    name: str
    program: Callable[[Scenario, Sequence[str], Path], Program]
    headers_of: Callable[[Scenario, Customer], Mapping[str, str]]
    lacks: str = ""


def hearth() -> Contender:
    """`hearth serve` with the scenario's tiers and tenants as its policy."""
    return Contender("hearth", hearth_program, lambda _scenario, tenant: key_headers(tenant))


def key_headers(tenant: Customer) -> dict[str, str]:
    """What tells our gateways which tenant asks."""
    return {"authorization": f"Bearer {_key(tenant)}"}


def smg() -> Contender:
    """SMG with its priority scheduler: tenants send the class of their tier, which reserves what the tier does."""

    def program(scenario: Scenario, pods: Sequence[str], folder: Path) -> Program:
        config = folder / "scheduler.yaml"
        config.write_text(yaml.safe_dump({"classes": smg_classes(scenario)}))
        arguments = ["--priority-scheduler-enabled", "--priority-scheduler-config", str(config)]
        default_class = ["--priority-scheduler-default-max-class", SMG_CLASSES[0].name]
        return rust("smg", "smg", "cache_aware", "launch", *arguments, *default_class).programs(pods, folder, "")[0]

    return Contender("smg priority", program, smg_header, rust("smg", "smg", "cache_aware").lacks())


def smg_classes(scenario: Scenario) -> dict[str, dict[str, object]]:
    """What each class reserves; the last covers all remaining tiers."""
    reserves = [tier.guaranteed_share for tier in _ranked(scenario)] + [0.0] * len(SMG_CLASSES)
    settings = {one.name: one.reserving(share) for one, share in zip(SMG_CLASSES, reserves, strict=False)}
    settings = {**settings, SYSTEM.name: SYSTEM.reserving(0.0)}
    return {name: {key: value for key, value in one.items() if key != "name"} for name, one in settings.items()}


def smg_header(scenario: Scenario, tenant: Customer) -> dict[str, str]:
    """The class of its tier, by rank."""
    rank = [tier.name for tier in _ranked(scenario)].index(tenant.tier)
    return {"x-smg-priority": SMG_CLASSES[min(rank, len(SMG_CLASSES) - 1)].name}


def _ranked(scenario: Scenario) -> list[Tier]:
    return sorted(scenario.tiers.values(), key=lambda tier: -tier.priority)


def smg_plain() -> Contender:
    """SMG by default: every request is forwarded at once."""
    rival = rust("smg", "smg", "cache_aware", "launch")
    return Contender(
        "smg",
        lambda _scenario, pods, folder: rival.programs(pods, folder, "")[0],
        lambda _scenario, _tenant: {},
        rival.lacks(),
    )


CONTENDERS = (smg_plain, smg, hearth)


def hearth_program(scenario: Scenario, pods: Sequence[str], folder: Path, arguments: Sequence[str] = ()) -> Program:
    """`hearth serve` with the scenario's policy, and further arguments."""
    port, admin = free_port(), free_port()
    policy, config = folder / "policy.yaml", folder / "hearth.yaml"
    policy.write_text(yaml.safe_dump(policy_of(scenario)))
    how = "priority" if scenario.profile.by_priority else "fcfs"
    settings = [{"url": url, "scheduling_policy": how} for url in pods]
    config.write_text(yaml.safe_dump({"discovery": {"static": {"pods": settings}}}))
    ports = [
        "--listen",
        f"{LOOPBACK}:{port}",
        "--metrics-listen",
        f"{LOOPBACK}:0",
        "--admin-listen",
        f"{LOOPBACK}:{admin}",
    ]
    files = ["--config", str(config), "--policy", str(policy), "--usage-log", str(folder / "usage.jsonl")]
    command = [sys.executable, "-m", "gateway", "serve", *ports, *files, *arguments]
    return Program(command, port, Ready(f"http://{LOOPBACK}:{admin}/fleet", pods_in_fleet))


def policy_of(scenario: Scenario) -> dict[str, object]:
    """The scenario's tiers and tenants as a policy document."""
    tenants = {one.name: {"tier": one.tier, "weight": one.weight} for one in scenario.tenants}
    keys = {one.name: [hashlib.sha256(_key(one).encode()).hexdigest()] for one in scenario.tenants}
    tiers = {name: _settings_of(tier) for name, tier in scenario.tiers.items()}
    return {"auth": {"keys": keys}, "tiers": tiers, "tenants": tenants}


def _settings_of(tier: Tier) -> dict[str, object]:
    """In the policy's keys, except for what is unlimited or default."""
    default = Tier(tier.name)
    durations = {"ttft_s": tier.ttft_s, "tpot_s": tier.tpot_s, "max_queue_s": tier.max_queue_s}
    settings = {option: seconds for option, seconds in durations.items() if isfinite(seconds)}
    others = {
        option: getattr(tier, spec.field)
        for option, spec in TIER.items()
        if option not in durations and getattr(tier, spec.field) != getattr(default, spec.field)
    }
    return {**settings, **others}


def _key(tenant: Customer) -> str:
    return f"sk-{tenant.name}"
