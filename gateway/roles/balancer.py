"""Balances prefill and decode engines with the traffic: at most one change per pool and look.

Reads fleet, ledger and costs of the router, lets `routing.pairing.roles` decide, and sets the role of the chosen engine
in the fleet. Sends nothing to the engines. Time is an argument of each look.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from routing.connectors.registry import connector_of
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pairing.roles import PoolEngine, RoleBalancer, RoleChange, RoleTerms, decode_load, decode_need
from routing.pods import Engine, Pod, PodState

INTERVAL_S = 1.0
"""How often it looks."""


def can_prefill_and_decode(facts: PodFacts) -> bool:
    """Whether connector and engine let a pod prefill for one request and decode another's."""
    connector = connector_of(facts)
    return connector is not None and connector.terms.supports_both_roles and facts.kv_role in (None, "kv_both")


@dataclass(slots=True)
class _Pool:
    """Engines among which roles move: of one connector and the same models."""

    balance: RoleBalancer
    since_s: dict[str, float] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    """As they were at the last look: others may have changed them since."""
    requested_s: dict[str, float] = field(default_factory=dict)


class RoleAssigner:
    """One per gateway. Keeps per pool what `routing.roles` needs from one look to the next."""

    def __init__(self, router: Router, terms: RoleTerms | None = None) -> None:
        self.terms = terms or RoleTerms()
        self.changes = 0
        self._router = router
        self._pools: dict[Hashable, _Pool] = {}

    def look(self, now_s: float) -> list[RoleChange]:
        """Change at most one role in each pool that needs it. Returns the changes; `now_s` is loop time in seconds."""
        changes = []
        members = self._members()
        for key, engines in members.items():
            pool = self._pools.setdefault(key, _Pool(RoleBalancer(self.terms)))
            if (change := self._look_at(pool, engines, now_s)) is not None:
                changes.append(change)
        for key in [key for key in self._pools if key not in members]:
            del self._pools[key]
        return changes

    def _members(self) -> dict[Hashable, list[tuple[Engine, PodFacts]]]:
        members: dict[Hashable, list[tuple[Engine, PodFacts]]] = {}
        for pod in self._router.fleet.pods:
            if pod.state is PodState.READY and pod.facts.kv_connector is not None:
                of_pool = members.setdefault(_pool_of(pod), [])
                of_pool.extend((engine, pod.facts) for engine in pod.engines)
        return {key: engines for key, engines in members.items() if len(engines) > 1}

    def _look_at(self, pool: _Pool, engines: list[tuple[Engine, PodFacts]], now_s: float) -> RoleChange | None:
        self._settle_roles(pool, engines, now_s)
        engines = [(self._router.fleet.engine(engine.name) or engine, facts) for engine, facts in engines]
        workers = [self._worker(pool, engine, facts, now_s) for engine, facts in engines]
        pool.balance.observe(workers, self._requested_since(pool, engines), now_s)
        change = pool.balance.next_change(workers, now_s)
        if change is not None:
            self._carry_out(pool, change, now_s)
        return change

    def _settle_roles(self, pool: _Pool, engines: Iterable[tuple[Engine, PodFacts]], now_s: float) -> None:
        """Engines that may do either begin as decoders, the first of them as one that prefills: somebody must."""
        known = pool.since_s
        names = {engine.name for engine, _ in engines}
        for name in [name for name in known if name not in names]:
            del known[name]
            pool.requested_s.pop(name, None)
            pool.roles.pop(name, None)
        has_prefill = any(engine.role is Role.PREFILL for engine, _ in engines)
        for engine, facts in engines:
            if engine.name not in known:
                known[engine.name] = now_s - self.terms.min_role_s
            if engine.role is Role.EITHER and can_prefill_and_decode(facts):
                self._router.fleet.override_role(engine.name, Role.DECODE if has_prefill else Role.PREFILL)
                has_prefill = True
            elif pool.roles.get(engine.name, engine.role) is not engine.role:
                known[engine.name] = now_s  # Who decided meanwhile has changed it: it stays from now on.
            pool.roles[engine.name] = self._role(engine)

    def _worker(self, pool: _Pool, engine: Engine, facts: PodFacts, now_s: float) -> PoolEngine:
        router, slot = self._router, engine.slot
        ledger = router.ledger
        owed_s = ledger.queued_s(lambda column: column[slot : slot + 1], now_s)[0]
        # A prefill engine's own requests hold KV until it is fetched: they are no decodes.
        decoding = float(ledger.handed_over[slot])
        if engine.role is not Role.PREFILL:
            decoding = max(decoding, ledger.all_running[slot] - ledger.requests_in_prefill(slot))
        base_s, each_s = router.decode_pace.line(slot)
        load = decode_load(
            decoding,
            # What a prefilling engine holds of KV is mostly prompts: it says nothing of decodes.
            0.0 if engine.role is Role.PREFILL else ledger.all_kv_tokens[slot],
            float(engine.kv_tokens or 0),
            base_s,
            each_s,
            self.terms.tpot_s,
        )
        since_s = pool.since_s[engine.name]
        need = decode_need(load, base_s, self.terms.tpot_s)
        return PoolEngine(
            engine.name, engine.role, since_s, owed_s, decoding, load, need, can_prefill_and_decode(facts)
        )

    def _requested_since(self, pool: _Pool, engines: Iterable[tuple[Engine, PodFacts]]) -> float:
        total = 0.0
        for engine, _ in engines:
            requested_s = self._router.ledger.total_prefill_s[engine.slot]
            total += requested_s - pool.requested_s.get(engine.name, requested_s)
            pool.requested_s[engine.name] = requested_s
        return total

    def _carry_out(self, pool: _Pool, change: RoleChange, now_s: float) -> None:
        self._router.fleet.override_role(change.engine, change.role)
        pool.balance.change_applied(now_s)
        pool.since_s[change.engine] = now_s
        pool.roles[change.engine] = change.role
        self.changes += 1

    def _role(self, engine: Engine) -> Role:
        now = self._router.fleet.engine(engine.name)
        return engine.role if now is None else now.role


def _pool_of(pod: Pod) -> Hashable:
    facts = pod.facts
    return (pod.pool, pod.models, facts.kv_connector, facts.revision)
