"""Decides how many engines each pool should have, about once a second, off the path of requests.

All gateways exchange their figures; the one that began first among those with fresh figures decides, and the others
answer with its decision, so that all answer alike. A gateway that does not see all peers, or whose decision is old,
states nothing: autoscalers then keep what they have. What a decision is made of is in the package `supply`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from math import ceil
from types import MappingProxyType
from typing import Any

from msgspec.structs import asdict

from gateway.config.pools import PoolEntry
from gateway.config.supply import SupplyConfig
from gateway.limits.accounts import QuotaEnforcer
from gateway.replica_sync.sync import ReplicaSync
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import call_guarded, report_exception, restarted
from gateway.scaling.actions import ActionAdviser
from gateway.scaling.advice import FleetAdviser
from gateway.scaling.demand import MeteredAdmissionQueue
from gateway.scaling.exchange import FigureBook
from gateway.scaling.external_scaler import ScalerAnswer
from gateway.scaling.figures import FleetFigures, GatewayFigures, PoolFigure, decode, encode
from gateway.scaling.model_loads import allowance_of, model_loads
from gateway.scaling.pool_watch import PoolKey, PoolWatch
from gateway.scaling.scaler_target import FAILED_PRECONDITION, NOT_FOUND, UNAVAILABLE, ScalerFault, ScalerTarget
from gateway.scaling.state_file import read_state_file, write_state_file
from gateway.scaling.supply_history import SupplyHistory
from routing.decision.router import Router
from routing.facts import Role
from routing.replica_state import SupplyUpdate
from supply.desired import DesiredFleet, DesiredPool, SupplyReason, SupplyTerm, desired_engines
from supply.load import ModelLoad, OfferedWork, PoolLoad
from supply.policy import ControlMode
from supply.state import EMPTY_STATE, SupplyState, decode_state, encode_state, without_model
from tenancy.objective import Tier

INTERVAL_S = 1.0

DECIDE_S = 5
"""Between two decisions about one model."""

MIN_INTERVAL_S = 0.1
"""Between two decisions, however many requests find no pod."""

STALE_S = 6.0
"""A decision that is older is not answered with."""

STATE_S = 600.0
"""Interval at which the complete state, histories included, is sent to peers: one model with each decision."""

NEW_PEER_S = 10.0
"""After a peer was first seen, when it is sent."""

POOLS_STATE_S = 5.0
"""The same of its small part: the memories of pools."""

MAX_STATE_BYTES = 32 << 20
"""Of a state after decompression."""

WRITE_S = 60.0
"""Interval at which the state is written to `state_file`."""

MAX_ERROR_CHARS = 200

FOLLOWED_S = 120.0
"""A pool whose figure was read by an autoscaler within this time is taken to be followed."""

MAX_WATCHERS = 1_024

ROLES = frozenset(role.value for role in Role)

LOOP = "supply"
"""The name under which exceptions are reported."""


class SupplyController:
    """One per gateway process whose configuration has `supply`."""

    def __init__(
        self,
        config: SupplyConfig,
        router: Router,
        room: MeteredAdmissionQueue,
        quotas: QuotaEnforcer,
        *,
        pools: Callable[[], Mapping[str, PoolEntry]],
        tiers: Callable[[], Mapping[str, Tier]],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        is_settled: Callable[[], bool],
        log_event: LogFunction,
    ) -> None:
        """`pools`: the section `pools` by name. `is_settled`: whether all pods were probed since the start."""
        self.config = config
        self.history = SupplyHistory()
        self.decision = FleetFigures(0)
        self.decided_s: float | None = None
        """Loop time of the last decision, of this gateway or of the one that decides; None before the first."""
        self.loads: Mapping[str, ModelLoad] = {}
        """What the last decision of this gateway read, by model."""
        self.actions: ActionAdviser | None = None
        """Proposes what could be changed beside the number of engines; set by the gateway."""
        self.in_thread: Callable[..., Coroutine[Any, Any, None]] = asyncio.to_thread
        """Runs a function that blocks."""
        self._router = router
        self._room = room
        self._meter = room.meter
        self._quotas = quotas
        self._pools = pools
        self._tiers = tiers
        self._clock = clock
        self._wall_clock = wall_clock
        self._is_settled = is_settled
        self._log_event = log_event
        self._adviser = FleetAdviser(router, config.policy)
        self._watch = PoolWatch(router, room.meter.groups, pools)
        self._book = FigureBook()
        self._sync: ReplicaSync | None = None
        self._leader: int | None = None
        self._fleets: dict[str, DesiredFleet] = {}
        """The last decision about each model, while this gateway decides."""
        self._due_s: dict[str, float] = {}
        self._state: SupplyState = self._read_state()
        self._written_s = clock()
        self._state_sent_s = self._pools_sent_s = clock()
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watcher_count = 0
        self._read_s: dict[PoolKey, float] = {}
        self._needed_s: dict[str, float] = {}
        self._woken: asyncio.TimerHandle | None = None
        self._ticked_s = -INTERVAL_S
        self._is_leaving = self._has_write_failed = False
        self._started_s = wall_clock()
        self._logged: dict[PoolKey, int] = {}
        self._unsent: list[str] = []
        """Models whose histories are still to be sent to peers."""
        self._failed: set[str] = set()
        """Models whose last decision has raised."""

    def __repr__(self) -> str:
        return f"<SupplyController of {len(self.decision.pools)} pools, {len(self._book.gateways)} gateways>"

    def share(self, sync: ReplicaSync) -> None:
        """Exchange figures and decisions with the other gateways."""
        self._sync = sync
        sync.applier.supply_listeners += (self._take_guarded,)

    @property
    def own_id(self) -> int:
        """Return the id of this gateway among its peers."""
        return self._sync.replica_id if self._sync is not None else 0

    @property
    def is_leader(self) -> bool:
        """Return whether this gateway decides."""
        return self._leader == self.own_id

    @restarted(LOOP)
    async def run(self) -> None:
        """Decide or follow every second, until cancelled."""
        while True:
            self.tick()
            await self._write_state()
            await asyncio.sleep(INTERVAL_S)

    def leave(self) -> None:
        """Tell peers that this gateway drains: they need not wait for its figures."""
        self._is_leaving = True
        if self._sync is not None:
            self._publish(self._own_figures())

    # -- one look ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Publish the figures of this gateway; decide, if it is the one that does."""
        now_s = self._ticked_s = self._clock()
        figures = self._own_figures()
        self._book.take(self.own_id, figures, now_s)
        self._publish(figures)
        self._book.expire(now_s)
        oldest = self._book.oldest()
        self._leader = self.own_id if oldest is None else oldest
        pools = self._watch.loads(
            {_key_of(each): each.engines for each in self.decision.pools}, self._followed(), now_s
        )
        if self.is_leader:
            self._decide(pools, now_s)
        else:
            self._fleets.clear()
        self._apply_spill(now_s)
        for model in [model for model in self._needed_s if self._router.fleet.serving(model)]:
            del self._needed_s[model]
        self._notify()

    def wake(self) -> None:
        """Look again soon: at once, unless the last look was a moment ago."""
        if self._woken is None:
            delay_s = max(0.0, self._ticked_s + MIN_INTERVAL_S - self._clock())
            self._woken = asyncio.get_running_loop().call_later(delay_s, call_guarded, LOOP, self._wake)

    def _wake(self) -> None:
        self._woken = None
        self.tick()

    def _own_figures(self) -> GatewayFigures:
        held = {
            model: count
            for model, count in self._room.waiting_for_pod.items()
            if self._meter.groups.of(model) is not None
        }
        figures = self._meter.take(self._room.queued_figures(), held, self._book.rejecting_tenants())
        figures.is_leaving, figures.started_s = self._is_leaving, self._started_s
        recent_s = self._clock() - FOLLOWED_S
        figures.followed = [(*key[:2], key[2].value) for key, read_s in self._read_s.items() if read_s > recent_s]
        return figures

    def _publish(self, message: GatewayFigures | FleetFigures) -> None:
        if self._sync is not None:
            self._sync.publish(SupplyUpdate(encode(message)))

    def _take_guarded(self, replica_id: int, payload: bytes, now_s: float) -> None:
        """Take a message of a peer. What it raises is reported: the other updates of its batch are applied."""
        call_guarded(LOOP, self._take, replica_id, payload, now_s)

    def _take(self, replica_id: int, payload: bytes, now_s: float) -> None:
        """Take a message of a peer."""
        message = decode(payload)
        if isinstance(message, GatewayFigures):
            if replica_id not in self._book.gateways:
                self._state_sent_s = min(self._state_sent_s, now_s - STATE_S + NEW_PEER_S)
            self._book.take(replica_id, message, now_s)
            for each in message.rejected:
                self._meter.remember(each.fingerprint)
            needed = {*message.held, *(each.model for each in message.rejected if each.is_without_pod)}
            if self.is_leader and any(self._is_at_zero(model) for model in needed):
                self.wake()
        elif message is not None:
            self._follow(replica_id, message, now_s)

    def _follow(self, replica_id: int, decision: FleetFigures, now_s: float) -> None:
        """Take the decision of the gateway that decides; of two that think they do, that of the older."""
        rank = self._book.rank
        if rank(replica_id) > rank(self.own_id) and self.own_id in self._book.gateways and not self._is_leaving:
            return
        if self._leader is not None and rank(replica_id) > rank(self._leader) and not self._is_old(now_s):
            return
        # A later version may know more roles.
        decision.pools = [each for each in decision.pools if each.role in ROLES]
        self.decision, self.decided_s = decision, now_s
        self._adviser.adopt(decision.spill)
        if decision.state:
            self._adopt_state(decision.state)
        self._record()
        self._notify()

    def _record(self) -> None:
        """Add the decision to the history and the log."""
        self.history.add(self.decision.pools, self._book.take_verdicts(), self._wall_clock())

    def _adopt_state(self, packed: bytes) -> None:
        try:
            text = zlib.decompressobj().decompress(packed, MAX_STATE_BYTES).decode()
            state = decode_state(text)
        except (zlib.error, UnicodeDecodeError, ValueError) as error:
            self._log_event("warning", "supply_state_invalid", error=str(error)[:MAX_ERROR_CHARS])
            return
        # The histories of tiers are sent one model at a time.
        known = {**self._state.tiers, **state.tiers}
        tiers = {key: one for key, one in known.items() if key.rsplit("|", 1)[0] in state.last_s}
        self._state = SupplyState(state.pools, MappingProxyType(tiers), state.last_s)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _decide(self, loads: Mapping[PoolKey, PoolLoad], now_s: float) -> None:
        policy, at_s, completeness = self.config.policy, self._wall_clock(), self.completeness()
        models = model_loads(
            self._book,
            loads,
            self._tiers(),
            self._allowances,
            probability=policy.probability,
            completeness=completeness,
            now_s=now_s,
        )
        self.loads = {load.model: load for load in models}
        pools: list[PoolFigure] = []
        unknown: dict[str, str] = {}
        short: dict[str, list[str]] = {}
        if not self._is_settled():
            # Until all pods were probed it is not known how many engines there are.
            self._hold(models, now_s, "pods are not known yet")
            return
        for at, load in enumerate(models):
            fleet = self._fleets.get(load.model)
            if fleet is None or now_s >= self._due_s[load.model] or self._is_urgent(load, fleet):
                # Decisions of many models are spread over the seconds: one takes some milliseconds of the event loop.
                self._due_s[load.model] = now_s + DECIDE_S - (at % DECIDE_S if fleet is None else 0.0)
                fleet = self._fleets[load.model] = self._decided(load, fleet, at_s)
                call_guarded(LOOP, self._adviser.look, load, now_s)
            pools.extend(map(_figure_of, fleet.pools))
            if not fleet.is_known:
                has_failed = load.model in self._failed
                unknown[load.model] = "the decision has failed" if has_failed else self._why_unknown(completeness)
            if fleet.short:
                short[load.model] = list(fleet.short)
        for model in self._fleets.keys() - self.loads.keys():
            del self._fleets[model], self._due_s[model]
        self._adviser.forget(self.loads)
        self.decision = FleetFigures(
            self.decision.number + 1,
            pools,
            unknown,
            short,
            spill=dict(self._adviser.spill),
            split=dict(self._adviser.split),
        )
        self.decided_s = now_s
        self._record()
        self._log_changes()
        self.decision.state = self._packed_state(now_s)
        self._publish(self.decision)
        self.decision.state = b""

    def _decided(self, load: ModelLoad, last: DesiredFleet | None, at_s: float) -> DesiredFleet:
        """Return the decision about one model. Where it raises, other models are decided, and this one is held.

        It is tried again without what is remembered of the model: a peer or the file may have given that.
        """
        policy = self.config.policy
        self._failed.discard(load.model)
        for state in (self._state, without_model(self._state, load.model)):
            try:
                fleet, self._state = desired_engines(load, policy, state, at_s)
            except Exception as error:  # noqa: BLE001 - reported; it must not end the decisions about other models
                report_exception(LOOP, error)
            else:
                return fleet
        self._failed.add(load.model)
        if last is not None:
            return replace(last, is_known=False)
        pools = (
            DesiredPool(load.model, each.pool, each.role, each.engines, each.engines, each.engines, SupplyReason.STALE)
            for each in load.pools
        )
        return DesiredFleet(load.model, tuple(pools), is_known=False)

    def _is_urgent(self, load: ModelLoad, fleet: DesiredFleet) -> bool:
        """Return whether a model cannot wait for its turn: a request needs a first pod, or its figure may be known."""
        is_known = load.completeness >= self.config.policy.min_completeness
        return is_known != fleet.is_known or (load.held > 0 and not any(pool.engines for pool in fleet.pools))

    def _hold(self, models: list[ModelLoad], now_s: float, why: str) -> None:
        """Show what is there, and state nothing."""
        pools = [
            PoolFigure(
                load.model,
                pool.pool,
                pool.role.value,
                pool.engines,
                pool.engines,
                pool.engines,
                SupplyReason.PARTIAL.value,
                is_active=True,
            )
            for load in models
            for pool in load.pools
        ]
        self.decision = FleetFigures(self.decision.number + 1, pools, {load.model: why for load in models})
        self.decided_s = now_s
        self._publish(self.decision)

    def completeness(self) -> float:
        """Return the share of gateways whose figures are known, of those that are there or are missing."""
        here = max(1, len(self._book.gateways))
        return here / max(here + len(self.missing()), self.config.min_gateways)

    def missing(self) -> frozenset[int]:
        """Return the ids of gateways without figures."""
        return self._book.missing(self.own_id, self._sync.applier.replica_ids if self._sync is not None else ())

    def _why_unknown(self, completeness: float) -> str:
        if completeness < self.config.policy.min_completeness:
            here = len(self._book.gateways)
            return f"sees {here} of {max(here + len(self.missing()), self.config.min_gateways)} gateways"
        return "figures are stale"

    def _allowances(self, model: str) -> dict[str, OfferedWork]:
        quotas, book = self._quotas, self._book
        prices, now_s = quotas.rates(model), quotas.now_s()
        return {
            tenant: allowance_of(quotas.accounts.find(tenant), book.admitted(tenant), prices, now_s)
            for tenant in book.rejecting_tenants()
        }

    def _packed_state(self, now_s: float) -> bytes:
        """Return what peers need to decide in place of this gateway; mostly without the histories, which are long."""
        state = self._state
        if self._sync is not None and now_s - self._state_sent_s >= STATE_S:
            self._state_sent_s, self._unsent = now_s, sorted(state.last_s)
        if self._sync is None or (now_s - self._pools_sent_s < POOLS_STATE_S and not self._unsent):
            return b""
        self._pools_sent_s, tiers = now_s, {}
        if self._unsent:  # One model at a time: all of them would take the event loop for seconds.
            model = self._unsent.pop(0)
            tiers = {key: one for key, one in state.tiers.items() if key.rsplit("|", 1)[0] == model}
        part = SupplyState(state.pools, MappingProxyType(tiers), state.last_s)
        return zlib.compress(encode_state(part).encode(), 1)

    def _read_state(self) -> SupplyState:
        path = self.config.state_file
        try:
            return EMPTY_STATE if path is None else read_state_file(path)
        except (OSError, ValueError) as error:
            self._log_event("warning", "supply_state_invalid", error=str(error)[:MAX_ERROR_CHARS])
            return EMPTY_STATE

    async def _write_state(self) -> None:
        """Write the file now and then, in a thread. A failure is logged once until it succeeds again."""
        path, now_s = self.config.state_file, self._clock()
        if path is None or not self.is_leader or now_s - self._written_s < WRITE_S:
            return
        self._written_s = now_s
        try:
            await self.in_thread(write_state_file, path, self._state)
            self._has_write_failed = False
        except OSError as error:
            if not self._has_write_failed:
                self._log_event("warning", "supply_state_write_failed", error=str(error)[:MAX_ERROR_CHARS])
            self._has_write_failed = True

    def _apply_spill(self, now_s: float) -> None:
        """Let the shares of the last decision leave, where spill acts; without a recent decision none does."""
        if self.config.policy.spill is not ControlMode.ACT:
            return
        fleet, groups = self._router.fleet, self._meter.groups
        fleet.rank_pools({entry.name: entry.rank for entry in self._pools().values() if entry.rank})
        figures = {} if self._is_old(now_s) else self.decision.spill
        shares = {model: figure.share for model, figure in figures.items() if figure.share > 0}
        served = {name for pod in fleet.pods for name in pod.models} if shares else set[str]()
        by_name = {name: shares.get(groups.of(name) or name, 0.0) for name in served}
        self._router.spill_shares = {name: share for name, share in by_name.items() if share}

    def _log_changes(self) -> None:
        before, self._logged = self._logged, {}
        for each in self.decision.pools:
            key = _key_of(each)
            self._logged[key] = each.engines
            if before.get(key, each.engines) != each.engines:
                self._log_event(
                    "info",
                    "desired_engines_changed",
                    model=each.model,
                    pool=each.pool,
                    role=each.role,
                    engines=each.engines,
                    engines_before=before[key],
                    reason=each.reason,
                )

    # -- from zero -----------------------------------------------------------------------------------------------------

    def covers(self, model: str) -> bool:
        """Return whether an autoscaler starts pods of a model: an acting policy allows one of its pools an engine."""
        policy = self.config.policy
        if policy.scaling is not ControlMode.ACT:
            return False
        group = self._meter.groups.of(model) or model
        names = {entry.name for entry in self._pools().values() if entry.model == group}
        names |= {each.pool for each in self.decision.pools if each.model == group}
        return any((policy.rails(name).max_engines or 0) > 0 for name in names)

    def needed(self, model: str) -> None:
        """Note that a request has found no pod of its model, and decide at once."""
        group = self._meter.groups.of(model) or model
        self._needed_s.setdefault(group, self._clock())
        if self._is_at_zero(group):  # Else engines are coming, and further requests change nothing within the second.
            self.wake()

    def remaining_s(self, model: str) -> float:
        """Return the seconds until the first pod of a model is expected; of a late one half of what a start takes."""
        group = self._meter.groups.of(model) or model
        start_s, since_s = self._watch.start_s(group), self._needed_s.get(group)
        if since_s is None:
            return start_s
        left_s = since_s + start_s - self._clock()
        if left_s < -4 * start_s:  # It was needed long ago: the need may have passed meanwhile.
            self._needed_s[group] = self._clock()
            return start_s
        return left_s if left_s > 0 else start_s / 2

    def _ready_models(self) -> set[str]:
        models = {each.model for each in self.decision.pools}
        return {model for model in models if self._router.fleet.serving(model)}

    def _is_at_zero(self, model: str) -> bool:
        return not any(each.engines for each in self.decision.pools if each.model == model)

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, target: ScalerTarget) -> ScalerAnswer:
        """Return the engines that a trigger's target should have. Raises `ScalerFault`."""
        now_s, policy = self._clock(), self.config.policy
        if policy.scaling is not ControlMode.ACT:
            raise ScalerFault(FAILED_PRECONDITION, f"supply.scaling is {policy.scaling.value}: nothing is published")
        if self.decided_s is None or self._is_old(now_s):
            raise ScalerFault(UNAVAILABLE, "no recent decision")
        if self.completeness() < policy.min_completeness:
            raise ScalerFault(UNAVAILABLE, self._why_unknown(self.completeness()))
        model = self._meter.groups.of(target.model) or target.model
        if model in self.decision.unknown:
            raise ScalerFault(UNAVAILABLE, self.decision.unknown[model])
        key = (model, target.pool, target.role)
        figure = next((each for each in self.decision.pools if _key_of(each) == key), None)
        if figure is None:
            raise ScalerFault(NOT_FOUND, self._not_found(model, target))
        if policy.rails(target.pool).missing:
            raise ScalerFault(FAILED_PRECONDITION, f"supply.pools: no guard rails for {target.pool}")
        self._read_s[key] = now_s
        if target.tier is None:
            return ScalerAnswer(figure.engines, figure.is_active)
        if target.tier not in figure.tiers and target.tier not in self._tiers():
            raise ScalerFault(NOT_FOUND, f"metadata.tier: no tier {target.tier}")
        engines = ceil(figure.tiers.get(target.tier, 0.0) - 1e-9)
        return ScalerAnswer(min(engines, figure.engines), figure.is_active and engines > 0)

    def _not_found(self, model: str, target: ScalerTarget) -> str:
        known = sorted(f"{each.pool}/{each.role}" for each in self.decision.pools if each.model == model)
        if not known:
            return f"metadata.model: no pool serves {target.model}"
        return f"metadata.pool: no {target.pool}/{target.role.value}; known: {', '.join(known)}"

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each decision. Returns the function that ends this."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise ScalerFault(UNAVAILABLE, "too many streams")
        self._watcher_count += 1
        number = self._watcher_count
        self._watchers[number] = on_change
        return lambda: self._watchers.pop(number, None) and None

    def _notify(self) -> None:
        for on_change in tuple(self._watchers.values()):
            call_guarded(LOOP, on_change)

    def _is_old(self, now_s: float) -> bool:
        return self.decided_s is None or now_s - self.decided_s > STALE_S

    def _followed(self) -> Callable[[PoolKey], bool]:
        followed = self._book.followed()
        return lambda key: (key[0], key[1], key[2].value) in followed

    @property
    def is_current(self) -> bool:
        """Return whether the decision is recent and all gateways are seen."""
        return not self._is_old(self._clock()) and self.completeness() >= self.config.policy.min_completeness

    def view(self) -> dict[str, Any]:
        """Return the last decision as JSON values, for the admin port."""
        now_s, policy, is_current = self._clock(), self.config.policy, self.is_current
        prices = {entry.name: entry.cost_per_engine_hour for entry in self._pools().values()}
        return {
            "mode": policy.scaling.value,
            "is_known": is_current and not self.decision.unknown,
            "unknown": dict(self.decision.unknown) if is_current else {"*": self._why_unknown(self.completeness())},
            "is_leader": self.is_leader,
            "gateways": len(self._book.gateways),
            "missing_gateways": len(self.missing()),
            "decision_age_s": None if self.decided_s is None else round(now_s - self.decided_s, 3),
            "short_tiers": {model: list(tiers) for model, tiers in self.decision.short.items()},
            "held": self._book.held(now_s, self._ready_models()),
            **self.advice(),
            "actions": [] if self.actions is None else self.actions.view(),
            "pools": [
                {
                    "model": each.model,
                    "pool": each.pool,
                    "role": each.role,
                    "desired_engines": each.engines,
                    "needed_engines": each.unbounded,
                    "present_engines": each.present,
                    "reason": each.reason,
                    "is_active": each.is_active,
                    "tiers": {name: round(engines, 3) for name, engines in each.tiers.items()},
                    "price_per_hour": round(each.price_per_hour, 4),
                    "terms": [
                        {"name": name, "value": _rounded(value), "unit": unit} for name, value, unit in each.terms
                    ],
                    "rails": {
                        name: getattr(policy.rails(each.pool), name)
                        for name in ("min_engines", "max_engines", "max_step_per_minute", "engine_hours_per_day")
                    },
                }
                for each in self.decision.pools
            ],
            "history": self.history.view(prices),
        }

    def advice(self) -> dict[str, Any]:
        """Return what is advised beside the number of engines, by model, as JSON values."""
        decision = self.decision
        return {
            "spill": {
                "mode": self.config.policy.spill.value,
                "models": {
                    model: {**asdict(figure), "missed": dict(figure.missed)} for model, figure in decision.spill.items()
                },
            },
            "split": {
                model: {**asdict(figure), "saving_per_hour": figure.colocated_per_hour - figure.split_per_hour}
                for model, figure in decision.split.items()
            },
        }


def _rounded(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return round(value, 6) if abs(value) < 1e15 else None


def _key_of(figure: PoolFigure) -> PoolKey:
    return figure.model, figure.pool, Role(figure.role)


def _figure_of(pool: DesiredPool) -> PoolFigure:
    return PoolFigure(
        pool.model,
        pool.pool,
        pool.role.value,
        pool.engines,
        pool.unbounded,
        pool.present,
        pool.reason.value,
        # A pool whose figure is zero is not woken for requests that another pool of the model will serve.
        pool.is_active and pool.engines > 0,
        dict(pool.tiers),
        [_term(term) for term in pool.terms],
        pool.price_per_hour,
    )


def _term(term: SupplyTerm) -> tuple[str, float, str]:
    return term.name, float(term.value), term.unit
