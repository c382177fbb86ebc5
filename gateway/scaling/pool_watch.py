"""What each pool has now, as supply decisions read it: engines by state, their speed, and how long a start takes.

A pool is known by the pods that discovery finds, or by the section `pools` while it has none. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gateway.config.pools import PoolEntry
from gateway.scaling.demand import ModelGroups
from routing.decision.router import Router
from routing.facts import Role
from routing.pods import Engine, Pod, PodState
from supply.load import EngineSpeed, PoolLoad
from supply.startup import StartTimes

PoolKey = tuple[str, str, Role]
"""Model, pool and role."""

MAX_POOLS = 512

DEFAULT_START_S = 60.0

MAX_START_S = 3_600.0
"""A start that took longer is counted as this long."""

SERVING = frozenset({PodState.READY, PodState.SUSPECT})


@dataclass(slots=True)
class WatchedPool:
    """What is kept of a pool between two looks."""

    starts: StartTimes
    requested_since_s: float | None = None
    """Since when fewer engines are ready than desired."""
    starting_since_s: float | None = None
    ready: int = 0
    speed: EngineSpeed = field(default_factory=EngineSpeed)


@dataclass(slots=True)
class PoolEngines:
    """The engines of a pool at one look."""

    ready: list[Engine] = field(default_factory=list)
    starting: int = 0
    draining: int = 0
    busy: float = 0.0
    kind: str = "default"
    region: str = ""


class PoolWatch:
    """The pools of one gateway."""

    def __init__(self, router: Router, groups: ModelGroups, pools: Callable[[], Mapping[str, PoolEntry]]) -> None:
        self._router = router
        self._groups = groups
        self._pools = pools
        self._memories: dict[PoolKey, WatchedPool] = {}

    def loads(
        self, desired: Mapping[PoolKey, int], followed: Callable[[PoolKey], bool], now_s: float
    ) -> dict[PoolKey, PoolLoad]:
        """Return the load of each pool. `desired`: the last decision; `followed`: whether an autoscaler reads it."""
        entries, engines = self._pools(), self._engines()
        loads: dict[PoolKey, PoolLoad] = {}
        for key, found in engines.items():
            entry = entries.get(key[1])
            memory = self._memories.get(key)
            if memory is None:
                memory = self._memories[key] = WatchedPool(StartTimes(_start_s(entry)))
            self._note(memory, found, desired.get(key, 0), now_s)
            if found.ready:
                memory.speed = self._speed(found)
            since_s = memory.requested_since_s if memory.requested_since_s is not None else memory.starting_since_s
            oldest_s = 0.0 if since_s is None else max(0.0, now_s - since_s)
            loads[key] = replace(
                _configured(entry),
                pool=key[1],
                role=key[2],
                speed=memory.speed,
                ready=len(found.ready),
                starting=found.starting,
                draining=found.draining,
                requested=desired.get(key) if followed(key) else None,
                oldest_start_s=oldest_s,
                start_s=memory.starts.upper_s(),
                busy=found.busy,
                region=found.region or (entry.region if entry else ""),
            )
        for key in [key for key in self._memories if key not in loads]:
            del self._memories[key]
        return loads

    def start_s(self, model: str) -> float:
        """Return the seconds that a start takes in the quickest pool of a model."""
        entries = self._pools()
        known = [memory.starts.upper_s() for key, memory in self._memories.items() if key[0] == model]
        known += [_start_s(entry) for entry in entries.values() if entry.model == model] if not known else []
        return min(known, default=DEFAULT_START_S)

    def _engines(self) -> dict[PoolKey, PoolEngines]:
        found: dict[PoolKey, PoolEngines] = {}
        ledger, seen = self._router.ledger, set[str]()
        for pod in self._router.fleet.pods:
            label = pod.pool_label
            model = self._model_of(pod, label)
            if model is None or not label:
                continue
            seen.add(label)
            for engine in pod.engines:
                key = (model, label, engine.role)
                pool = found.get(key)
                if pool is None:
                    if len(found) >= MAX_POOLS:
                        continue
                    pool = found[key] = PoolEngines(kind=pod.facts.gpu or "default", region=pod.region or "")
                pool.busy += ledger.all_running[engine.slot]
                if pod.state in SERVING:
                    pool.ready.append(engine)
                elif pod.state is PodState.DRAINING:
                    pool.draining += 1
                else:
                    pool.starting += 1
        for entry in self._pools().values():
            if entry.model is not None and entry.name not in seen and len(found) < MAX_POOLS:
                found.setdefault((entry.model, entry.name, entry.role), PoolEngines())
        return found

    def _model_of(self, pod: Pod, label: str) -> str | None:
        """Return the model of a pod: as it reports, or of its pool's entry before it does."""
        base = min(pod.models - pod.adapters, default=None)
        if base is not None:
            return self._groups.of(base)
        entry = self._pools().get(label)
        return entry.model if entry is not None else None

    def _speed(self, found: PoolEngines) -> EngineSpeed:
        router, slots = self._router, [engine.slot for engine in found.ready]
        costs, pace = router.costs, router.decode_pace
        # What `costs` learns includes the stalls by the prefill of the moment: it would count that twice.
        steps = [
            pace.line(slot) if pace.is_known else (costs.step_base_s[slot], costs.step_per_sequence_s[slot])
            for slot in slots
        ]
        sizes = [engine.kv_tokens for engine in found.ready if engine.kv_tokens]
        seconds_per_token = sum(costs.seconds_per_token[slot] for slot in slots) / len(slots)
        prior = EngineSpeed()
        return EngineSpeed(
            kind=found.kind,
            prefill_tokens_per_s=1 / seconds_per_token if seconds_per_token > 0 else prior.prefill_tokens_per_s,
            step_base_s=sum(base_s for base_s, _ in steps) / len(slots),
            step_per_sequence_s=sum(each_s for _, each_s in steps) / len(slots),
            kv_capacity_tokens=sum(sizes) / len(sizes) if sizes else prior.kv_capacity_tokens,
        )

    def _note(self, memory: WatchedPool, found: PoolEngines, desired: int, now_s: float) -> None:
        """Note since when engines are missing, and how long those took that have come."""
        ready = len(found.ready)
        if ready > memory.ready and memory.requested_since_s is not None:
            memory.starts = memory.starts.observed(min(now_s - memory.requested_since_s, MAX_START_S))
            memory.requested_since_s = None
        memory.ready = ready
        if desired <= ready:
            memory.requested_since_s = None
        elif memory.requested_since_s is None:
            memory.requested_since_s = now_s
        if not found.starting:
            memory.starting_since_s = None
        elif memory.starting_since_s is None:
            memory.starting_since_s = now_s


def _configured(entry: PoolEntry | None) -> PoolLoad:
    if entry is None:
        return PoolLoad()
    return PoolLoad(price_per_hour=entry.cost_per_engine_hour, rank=entry.rank, distance_s=entry.distance_s)


def _start_s(entry: PoolEntry | None) -> float:
    return DEFAULT_START_S if entry is None or entry.start_s is None else entry.start_s
