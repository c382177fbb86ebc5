"""What decisions remember between calls: values that gateways share as JSON, so that all of them answer alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from supply.forecast import PendingForecast, WayError, WorkHistory
from supply.load import OfferedWork

VERSION = 1
MAX_TEXT_BYTES = 32 << 20
"""Of an encoded state: some hundred models with three tiers."""


FORGET_S = 14 * 86_400.0
MAX_MODELS = 256


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Of one model, pool and role."""

    figure: int | None = None
    """The last answer."""
    high: tuple[tuple[float, int], ...] = ()
    """What the load needed: (time, figure), falling; its first entry is the highest of `down_after_s`."""
    raises: tuple[tuple[float, int], ...] = ()
    """(time, engines added) within the minimum stay."""
    recent: tuple[tuple[float, int], ...] = ()
    """(time, figure) of the last minute."""
    hours: tuple[tuple[int, float], ...] = ()
    """(hour since the epoch, engine-hours) of the last day."""
    ungranted_s: float | None = None
    """Since when the cluster has fewer engines than the figure, without having added one."""
    granted: int = 0
    """Engines that the cluster had then."""
    quiet_s: float | None = None
    """Since when there has been no work."""


@dataclass(frozen=True, slots=True)
class TierMemory:
    """Of one model and tier."""

    history: WorkHistory = field(default_factory=WorkHistory)
    strain: float = 1.0
    """Learned factor on the work: above 1 where fewer requests met the objective than the estimate says."""


@dataclass(frozen=True, slots=True)
class SupplyState:
    """What decisions remember. Keys are `MODEL|POOL|ROLE` and `MODEL|TIER`."""

    pools: Mapping[str, PoolMemory] = field(default_factory=lambda: MappingProxyType({}))
    tiers: Mapping[str, TierMemory] = field(default_factory=lambda: MappingProxyType({}))
    last_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Time of the last decision, by model."""


EMPTY_STATE = SupplyState()


def forget_models(state: SupplyState, now_s: float) -> SupplyState:
    """Return the state without models that no decision was about for `FORGET_S`, and with at most `MAX_MODELS`."""
    latest = sorted(state.last_s, key=lambda model: (-state.last_s[model], model))
    kept = {model for model in latest[:MAX_MODELS] if now_s - state.last_s[model] <= FORGET_S}
    if len(kept) == len(state.last_s):
        return state
    pools = {key: one for key, one in state.pools.items() if key.rsplit("|", 2)[0] in kept}
    tiers = {key: one for key, one in state.tiers.items() if key.rsplit("|", 1)[0] in kept}
    last_s = {model: at for model, at in state.last_s.items() if model in kept}
    return SupplyState(MappingProxyType(pools), MappingProxyType(tiers), MappingProxyType(last_s))


def without_model(state: SupplyState, model: str) -> SupplyState:
    """Return the state without what is remembered of a model."""
    pools = {key: one for key, one in state.pools.items() if key.rsplit("|", 2)[0] != model}
    tiers = {key: one for key, one in state.tiers.items() if key.rsplit("|", 1)[0] != model}
    last_s = {key: at for key, at in state.last_s.items() if key != model}
    return SupplyState(MappingProxyType(pools), MappingProxyType(tiers), MappingProxyType(last_s))


def encode_state(state: SupplyState) -> str:
    """Return the state as one line of JSON."""
    # In pieces: one call for all of it would keep other threads waiting for seconds.
    pools = ",".join(f"{_json(key)}:{_json(asdict(memory))}" for key, memory in state.pools.items())
    tiers = ",".join(f"{_json(key)}:{_json(asdict(memory))}" for key, memory in state.tiers.items())
    return f'{{"version":{VERSION},"pools":{{{pools}}},"tiers":{{{tiers}}},"last_s":{_json(dict(state.last_s))}}}'


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def decode_state(text: str) -> SupplyState:
    """Return the state of `encode_state`. Raises ValueError where the text is not one of this version."""
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"supply state: longer than {MAX_TEXT_BYTES} bytes")
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(f"supply state: version {content['version']!r}, this gateway reads {VERSION}")
        return SupplyState(
            MappingProxyType({key: _pool(one) for key, one in content["pools"].items()}),
            MappingProxyType({key: _tier(one) for key, one in content["tiers"].items()}),
            MappingProxyType({str(key): float(one) for key, one in content["last_s"].items()}),
        )
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"supply state: {error!r}") from error


def _pairs(given: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple((one, two) for one, two in given)


def _pool(given: dict[str, Any]) -> PoolMemory:
    pairs = {name: _pairs(given[name]) for name in ("high", "raises", "recent", "hours")}
    return PoolMemory(**{**given, **pairs})


def _tier(given: dict[str, Any]) -> TierMemory:
    history = dict(given["history"])
    history["level"] = OfferedWork(**history["level"])
    history["recent"] = _pairs(history["recent"])
    for name in ("day", "day_seen", "week", "week_seen"):
        history[name] = tuple(map(float, history[name]))
    history["pending"] = tuple(PendingForecast(one["at_s"], tuple(one["values"])) for one in history["pending"])
    history["errors"] = tuple(WayError(**one) for one in history["errors"])
    return TierMemory(WorkHistory(**history), float(given["strain"]))
