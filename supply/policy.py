"""What operators allow: the mode of each control, and the guard rails of each pool. Read once, checked as a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf, isfinite
from types import MappingProxyType


class ControlMode(StrEnum):
    """What a control may do."""

    OFF = "off"
    """Nothing is computed or shown."""
    ADVISE = "advise"
    """The figure is computed and shown; nothing acts on it. The default."""
    ACT = "act"
    """The figure is published to the scaler, within the guard rails."""


CONTROLS = ("scaling", "spill", "prewarm", "role_switch", "drain")
"""Each has a mode of its own."""

REQUIRED_RAILS = ("min_engines", "max_engines", "max_step_per_minute", "engine_hours_per_day")
"""That each pool needs before scaling may act."""


@dataclass(frozen=True, slots=True)
class GuardRails:
    """Bounds of one pool. None: not given, which `act` does not accept."""

    min_engines: int | None = None
    max_engines: int | None = None
    max_step_per_minute: int | None = None
    """Engines by which the figure may change within a minute, up or down."""
    engine_hours_per_day: float | None = None
    """Budget of engine-hours in any 24 hours. When it is used up the figure falls to `min_engines`."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of the rails that are not given."""
        return tuple(name for name in REQUIRED_RAILS if getattr(self, name) is None)


@dataclass(frozen=True, slots=True)
class SupplyPolicy:
    """All settings of supply decisions."""

    scaling: ControlMode = ControlMode.ADVISE
    spill: ControlMode = ControlMode.ADVISE
    prewarm: ControlMode = ControlMode.ADVISE
    role_switch: ControlMode = ControlMode.ADVISE
    drain: ControlMode = ControlMode.ADVISE
    pools: Mapping[str, GuardRails] = field(default_factory=lambda: MappingProxyType({}))
    probability: float = 0.95
    """Default of the share of requests that shall meet their tier's objective."""
    use_forecast: bool = True
    max_age_s: float = 90.0
    """Older figures hold the count."""
    min_completeness: float = 1.0
    """A smaller share of gateways holds the count."""
    min_stay_s: float = 300.0
    """An engine that was added stays at least this long (of role `either` and `decode`)."""
    min_stay_prefill_s: float = 180.0
    """The same for prefill engines, which hold no streams."""
    down_after_s: float = 180.0
    """The count falls to the highest figure of this time."""
    down_margin: float = 0.05
    """Share of the count by which the figure must be lower; one engine at least."""
    idle_to_zero_s: float = 900.0
    """Quiet time after which a pool with `min_engines: 0` goes to zero."""
    grant_patience: float = 4.0
    """A cluster that has granted nothing for this many start-up times is taken to grant nothing."""
    prewarm_max_s: float = 30.0
    """Seconds for which a new pod is warmed at most before it takes load."""
    prewarm_max_tokens: float = 200_000.0
    """Prompt tokens that are replayed to one engine at most."""
    prewarm_max_pods: int = 16
    """Pods that are warmed at once, by all gateways together."""
    prewarm_kv_share: float = 0.5
    """Share of an engine's KV blocks that replays may fill."""
    prewarm_keep_bytes: float = 16 * 1024 * 1024
    """Bytes of prompts that a gateway process keeps for warm-ups, with `prewarm: act` only."""
    prewarm_keep_s: float = 600.0
    """Seconds after which a kept prompt is forgotten."""

    def rails(self, pool: str) -> GuardRails:
        """Return the guard rails of a pool; those of `default` where it has none of its own."""
        return self.pools.get(pool) or self.pools.get("default") or GuardRails()


@dataclass(frozen=True, slots=True)
class SupplyFault:
    """One fault of a supply section: the field with its path, and what is wrong."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class InvalidSupplyPolicy(ValueError):  # noqa: N818 - it carries a verdict on the input
    """All faults of a supply section, one line each."""

    def __init__(self, faults: tuple[SupplyFault, ...]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def read_supply_policy(
    given: Mapping[str, object], *, path: str = "supply", pools: frozenset[str] = frozenset()
) -> SupplyPolicy:
    """Return the policy of a `supply` section. Raises `InvalidSupplyPolicy` with all faults.

    `pools` are the known pools: with `scaling: act` each of them needs all guard rails, of its own or of `default`.
    """
    values: dict[str, object] = {}
    faults: list[SupplyFault] = []
    known = {one.name for one in fields(SupplyPolicy)}
    for key, value in given.items():
        at = f"{path}.{key}"
        try:
            if key in CONTROLS:
                values[key] = _mode(value)
            elif key == "pools":
                values[key] = MappingProxyType(dict(_read_pools(value, at, faults)))
            elif key in known:
                values[key] = _READERS[key](value)
            else:
                faults.append(SupplyFault(at, f"is not a key; known are {', '.join(sorted(known))}"))
        except ValueError as error:
            faults.append(SupplyFault(at, str(error)))
    if not faults:
        policy = SupplyPolicy(**values)  # type: ignore[arg-type]
        faults.extend(check_rails(policy, pools, path))
        if not faults:
            return policy
    raise InvalidSupplyPolicy(tuple(faults))


def check_rails(policy: SupplyPolicy, pools: frozenset[str], path: str = "supply") -> list[SupplyFault]:
    """Return what `scaling: act` still lacks for these pools and those that the policy names; empty in other modes."""
    if policy.scaling is not ControlMode.ACT:
        return []
    problem = "is required with scaling: act; set it here or in pools.default, or use scaling: advise"
    return [
        SupplyFault(f"{path}.pools.{pool}.{name}", problem)
        for pool in sorted(pools | set(policy.pools)) or ["default"]
        for name in policy.rails(pool).missing
    ]


def _read_pools(given: object, path: str, faults: list[SupplyFault]) -> Iterator[tuple[str, GuardRails]]:
    if not isinstance(given, Mapping):
        raise ValueError("must be a mapping of pool names to guard rails")  # noqa: TRY004 - one kind of error
    for pool, table in given.items():
        at = f"{path}.{pool}"
        if not isinstance(table, Mapping):
            faults.append(SupplyFault(at, "must be a mapping of guard rails"))
            continue
        rails: dict[str, int | float] = {}
        for key, value in table.items():
            try:
                if key not in REQUIRED_RAILS:
                    raise ValueError(f"is not a guard rail; known are {', '.join(REQUIRED_RAILS)}")
                rails[key] = _number(value, 0, inf) if key == "engine_hours_per_day" else _count(value)
            except ValueError as error:
                faults.append(SupplyFault(f"{at}.{key}", str(error)))
        if rails.get("min_engines", 0) > rails.get("max_engines", inf):
            faults.append(
                SupplyFault(f"{at}.min_engines", f"is {rails['min_engines']}, above max_engines {rails['max_engines']}")
            )
        if rails.get("max_step_per_minute") == 0:
            faults.append(SupplyFault(f"{at}.max_step_per_minute", "must be at least 1, or use scaling: off"))
        hours, lowest = rails.get("engine_hours_per_day", inf), rails.get("min_engines", 0)
        if hours < 24 * lowest:
            faults.append(
                SupplyFault(
                    f"{at}.engine_hours_per_day",
                    f"is {hours:g}; min_engines {lowest:g} alone use {24 * lowest:g}",
                )
            )
        yield str(pool), GuardRails(**rails)  # type: ignore[arg-type]


def _mode(value: object) -> ControlMode:
    value = "off" if value is False else value  # YAML 1.1 reads a bare `off` as false
    try:
        return ControlMode(value)  # type: ignore[arg-type]
    except ValueError:
        raise ValueError(f"is {value!r}; must be one of {', '.join(ControlMode)}") from None


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100_000:
        raise ValueError(f"is {value!r}; must be an integer from 0 to 100000")
    return value


def _positive(value: object) -> int:
    count = _count(value)
    if count == 0:
        raise ValueError("is 0; must be at least 1, or use prewarm: off")
    return count


def _number(value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not low <= value <= high:
        bounds = f"from {low:g} to {high:g}" if high < inf else f"of at least {low:g}"
        raise ValueError(f"is {value!r}; must be a number {bounds}")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {value!r}; must be true or false")  # noqa: TRY004 - one kind of error for all faults
    return value


def _seconds(value: object) -> float:
    return _number(value, 0.0, 7 * 86_400.0)


_READERS: Mapping[str, Callable[[object], object]] = {
    "probability": lambda value: _number(value, 0.5, 0.9999),
    "use_forecast": _flag,
    "max_age_s": _seconds,
    "min_completeness": lambda value: _number(value, 0.0, 1.0),
    "min_stay_s": _seconds,
    "min_stay_prefill_s": _seconds,
    "down_after_s": _seconds,
    "down_margin": lambda value: _number(value, 0.0, 1.0),
    "idle_to_zero_s": _seconds,
    "grant_patience": lambda value: _number(value, 1.0, 100.0),
    "prewarm_max_s": lambda value: _number(value, 0.0, 600.0),
    "prewarm_max_tokens": lambda value: _number(value, 0.0, 1e9),
    "prewarm_max_pods": _positive,
    "prewarm_kv_share": lambda value: _number(value, 0.0, 0.9),
    "prewarm_keep_bytes": lambda value: _number(value, 0.0, float(1 << 30)),
    "prewarm_keep_s": _seconds,
}
