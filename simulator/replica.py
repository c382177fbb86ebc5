"""One gateway of a replay: a router with its scorers, the pipeline, and its view of pods that others use too.

Independent of the trace. Where several share pods, each has its own, and receives updates of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Protocol

from gateway.pairs.pairs import PairTransport
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.attempt import AttemptLimits
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import OutcomeListener
from gateway.roles.balancer import INTERVAL_S, RoleAssigner
from routing.decision.router import Router
from routing.facts import Role
from routing.ledger import ExternalLoad
from routing.pairing.roles import RoleGate
from routing.pods import EngineShape, Pod, PodState
from routing.precise.lookup_notifier import LookupNotifier
from routing.rejection import RequestRejected
from routing.request import Request
from simulator.known_caches import KnownCaches
from simulator.policies.board import Board
from simulator.policies.registry import scorers_of
from simulator.profile import Profile
from simulator.sequence import Sequence
from simulator.split import Split
from simulator.virtual_carrier import VirtualCarrier
from simulator.virtual_pod import VirtualPod
from tenancy.tenants import ANONYMOUS_CALLER, Caller

MakeRoom = Callable[[Router, Callable[[], float], Callable[[], float]], AdmissionQueue]
"""Where requests wait: of a router, a clock and a source of draws."""

MODEL = "simulated"

LONG_READY_S = -86_400.0
"""The pods have been ready for a day when the replay begins: no slow start."""

NO_GROUPS: Mapping[str, str] = {}

SCRAPE_S = 5.0
"""How often a gateway looks at its pods, as `hearth serve` does."""


def _plain_room(router: Router, clock: Callable[[], float], draw: Callable[[], float]) -> AdmissionQueue:
    """An admission queue without waiting."""
    return AdmissionQueue(router, clock=clock, draw=draw)


def _gate_of(split: Split | None) -> RoleGate | None:
    """Return what keeps roles apart: fixed ones wholly, soft ones as far as they keep their objectives."""
    return RoleGate(split.terms if split.is_soft else None) if split is not None and split.is_forced else None


class Made(Protocol):
    """Of what a replica is made."""

    @property
    def routing(self) -> str: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def seed(self) -> int: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def split(self) -> Split | None: ...
    @property
    def knows_caches(self) -> bool: ...


class Replica:
    """Made on the loop whose clock it reads."""

    def __init__(
        self,
        made: Made,
        number: int,
        pods: Mapping[str, VirtualPod],
        on_outcome: OutcomeListener,
        make_room: MakeRoom | None = None,
        *,
        resumes: bool = False,
        profiles: tuple[Profile, ...] = (),
        groups: Mapping[str, str] = NO_GROUPS,
    ) -> None:
        """`resumes`: streams whose engine dies go on elsewhere. `profiles`: of the first pods, where they differ.
        `groups`: by pod, the name of the engines that step together with its own.
        """
        self._resumes = resumes
        self._groups = groups
        loop = asyncio.get_running_loop()
        draws = Random(made.seed * 1_000 + number)
        self.board = Board()
        self.router = Router(
            scorers_of(made.routing, self.board, made.profile, draws),
            default_gate=_gate_of(made.split),
            exact_sizes=True,
        )
        self._split = made.split
        self.role_changes: list[tuple[float, str, str]] = []
        self.keeper = RoleAssigner(self.router, made.split.terms) if made.split is not None else None
        self._pods = pods
        self._caches = KnownCaches(self.router, pods, made.profile.block_size) if made.knows_caches else None
        if made.knows_caches:
            self.router.subscribe(LookupNotifier())
        self._clock = loop.time
        self.room = (make_room or _plain_room)(self.router, loop.time, draws.random)
        self._pipeline = RequestPipeline(
            self.router,
            health=lambda _pod, _end: None,
            observers=[on_outcome],
            clock=loop.time,
            wall_clock=loop.time,
            draw=draws.random,
            limits=AttemptLimits(deadline_s=made.deadline_s),
            queue=self.room,
            run_pair=PairTransport(self.router.fleet, self.router.ledger, clock=loop.time).run_attempt
            if made.split is not None
            else None,
        )
        for place, url in enumerate(pods):
            self.put(place, url, profiles[place] if place < len(profiles) else made.profile)

    def put(self, place: int, url: str, profile: Profile, state: PodState = PodState.READY) -> None:
        """What a watcher would put into the fleet for one pod."""
        pod = Pod(url, state=state, models=frozenset({MODEL}), ready_since_s=LONG_READY_S)
        shape = EngineShape(kv_tokens=profile.kv_capacity_tokens, block_tokens=profile.block_size)
        if self._split is not None:
            pod, shape = replace(pod, facts=self._split.facts(place)), replace(shape, role=self._split.role(place))
            self.router.pairing.kv_bytes[MODEL] = float(self._split.link.bytes_per_token)
        if (group := self._groups.get(url)) is not None:
            pod = replace(pod, facts=replace(pod.facts, ep=True, dp_group=group))
        self.router.put_pod(pod)
        self.router.reshape_pod(url, [shape])

    async def run_request(
        self, request: Request, sequence: Sequence, caller: Caller = ANONYMOUS_CALLER
    ) -> RequestRejected | None:
        """Send one request through the pipeline. Return the rejection, or None."""
        if self._caches is not None:
            request = self._caches.known_to(request, sequence)
        is_patient = self._split is not None
        carrier = VirtualCarrier(
            self._pods, sequence, self.board.first_token, is_patient=is_patient, resumes=self._resumes
        )
        try:
            await self._pipeline.handle_request(request, carrier, caller=caller)
        finally:
            self.board.end(request.id)
        return carrier.rejection

    def stand(self, url: str, pod_state: PodState) -> None:
        """What a watcher would say of a pod now."""
        known = self.router.fleet.pod(url)
        if known is not None:
            self.router.put_pod(replace(known, state=pod_state, ready_since_s=self._clock()))
            self.room.wake_waiters()

    async def keep_roles(self) -> None:
        """Let roles follow the traffic, or one's foreknowledge of it, until cancelled."""
        split, keeper = self._split, self.keeper
        if split is None or keeper is None:
            return
        for at_s, prefill in split.shifts:
            await asyncio.sleep(at_s - self._clock())
            for number, url in enumerate(self._pods):
                self.router.fleet.override_role(url, Role.PREFILL if number < prefill else Role.DECODE)
        while split.is_soft:
            await asyncio.sleep(INTERVAL_S)
            for change in keeper.look(self._clock()):
                self.role_changes.append((self._clock(), change.engine, change.role))

    async def look(self) -> None:
        """Scrape all pods now and then, until cancelled: what is there beyond what this gateway knows of is others'."""
        while True:
            await asyncio.sleep(SCRAPE_S)
            for url, pod in self._pods.items():
                self._look_at(url, pod)

    def _look_at(self, url: str, pod: VirtualPod) -> None:
        known, ledger, counts = self.router.fleet.pod(url), self.router.ledger, pod.statistics()
        there = counts.running + counts.waiting
        for engine in known.engines if known else ():
            beyond = max(0.0, float(there - ledger.running[engine.slot]))
            kv_tokens = counts.kv_usage * (engine.kv_tokens or 0) - ledger.kv_tokens[engine.slot]
            external = ExternalLoad(beyond, min(float(counts.waiting), beyond), max(0.0, kv_tokens), self._clock())
            self.router.observe_load(engine.slot, external)
