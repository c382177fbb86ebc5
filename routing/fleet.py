"""Pods and engines known now, and which of them may serve a model or a request.

One writer (the gateway's pod watcher) puts and removes complete pods as values, so a decision never reads a
half-written fleet. Ready engines are preferred; then engines that only prefill; then pods whose requests have failed.
Independent of load and cached prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from routing.eligible import EligibleEngines, PairingFallback, engines_of
from routing.facts import Role
from routing.pods import Engine, EngineShape, Pod, PodState
from routing.rejection import Reason, RequestRejected
from routing.request import Request

EligibleKey = tuple[str, frozenset[str] | None]


class Fleet:
    """Pods by URL. Slots are given to engines when they appear and taken back when their pod is removed."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._free_slots: list[int] = []
        self._slots_made = 0
        self._rosters: dict[EligibleKey, EligibleEngines] = {}
        self._prefill_rosters: dict[EligibleKey, EligibleEngines] = {}
        self._last_resorts: dict[EligibleKey, EligibleEngines] = {}
        self.version = 0
        """Another whenever a pod is put, removed or has lost its cache."""
        self.configured_models: frozenset[str] = frozenset()
        """Models that the operator names: they exist, whether or not a pod is there that serves them."""
        self.pool_ranks: Mapping[str, int] = {}
        """Ranks of pools whose pods state none; changed by `rank_pools`."""
        self.revision_aliases: Mapping[str, str] = {}
        """Revisions whose pods exchange KV with those of another, because they hold the same weights. Set at the start.
        """
        self.is_complete = True
        """Whether all discovery sources have reported their pods."""
        self._engines: dict[str, Engine] = {}
        self._assumed: dict[tuple[str, int | None], Role] = {}
        """Roles that engines were given here, by pod and rank: they stand above what their pods say."""

    def __repr__(self) -> str:
        ready = sum(pod.state is PodState.READY for pod in self._pods.values())
        return f"<Fleet {ready} of {len(self._pods)} pods ready>"

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._pods.values())

    @property
    def slot_count(self) -> int:
        """How long a per-slot list has to be."""
        return self._slots_made

    def pod(self, url: str) -> Pod | None:
        return self._pods.get(url)

    def engine(self, name: str) -> Engine | None:
        """An engine by its name."""
        if not self._engines:
            self._engines = {engine.name: engine for pod in self._pods.values() for engine in pod.engines}
        return self._engines.get(name)

    def put(self, pod: Pod) -> None:
        """Add a pod or replace what is known of it. Its engines keep their slots: change them with `reshape`."""
        self._pods[pod.url] = pod
        self._forget_rosters()

    def reshape(self, url: str, shapes: Iterable[EngineShape]) -> tuple[int, ...]:
        """Give a pod the engines it says it has. Returns the slots that are freed, for the caller to forget."""
        pod = self._pods[url]
        known = {engine.rank: engine for engine in pod.engines}
        engines = []
        for shape in shapes:
            old = known.pop(shape.rank, None)
            slot = old.slot if old else self._take_slot()
            role = self._assumed.get((url, shape.rank), shape.role)
            engines.append(Engine(slot, url, shape.rank, role, shape.kv_tokens, shape.block_tokens))
        self.put(replace(pod, engines=tuple(engines)))
        return tuple(engine.slot for engine in known.values())

    def override_role(self, name: str, role: Role) -> None:
        """Give an engine another role than its pod says, for as long as the pod is there."""
        engine = self.engine(name)
        if engine is None or engine.role is role:
            return
        self._assumed[engine.pod, engine.rank] = role
        pod = self._pods[engine.pod]
        self.put(replace(pod, engines=tuple(replace(one, role=role) if one is engine else one for one in pod.engines)))

    def rank_pools(self, ranks: Mapping[str, int]) -> None:
        """Set the ranks of pools, by name, for pods that state none. Equal ranks cost a decision nothing."""
        if ranks != self.pool_ranks:
            self.pool_ranks = ranks
            self._forget_rosters()

    def remove(self, url: str) -> tuple[int, ...]:
        """Take a pod out. Returns the slots that are freed, for the caller to forget."""
        self._assumed = {position: role for position, role in self._assumed.items() if position[0] != url}
        pod = self._pods.pop(url, None)
        self._forget_rosters()
        return tuple(engine.slot for engine in pod.engines) if pod else ()

    def eligible(self, model: str, regions: frozenset[str] | None = None) -> EligibleEngines:
        """The engines that may answer for `model` now, in one of these regions or anywhere; may be empty.

        Engines for prefill only are included if there are no others.
        """
        eligible = self._rosters.get((model, regions))
        if eligible is None:
            members = [each for each in self._ready(model, regions) if each[0].role is not Role.PREFILL]
            if members:
                others = any(map(_prefills, self._ready(model, regions)))
                wants_others = not others and any(engine.role is Role.DECODE for engine, _ in members)
                eligible = replace(
                    engines_of(members, model, self.pool_ranks),
                    has_prefillers=others,
                    fallback=PairingFallback.NO_PREFILL_POD if wants_others else None,
                )
                self._keep(self._rosters, model, regions, eligible)
            else:
                eligible = self.eligible_prefill(model, regions, at_large=True)
        return eligible

    def eligible_prefill(
        self, model: str, regions: frozenset[str] | None = None, *, at_large: bool = False
    ) -> EligibleEngines:
        """The engines that may prefill for others now; `at_large`, all that are there for prefill, to answer as a last
        resort.
        """
        kept = self._last_resorts if at_large else self._prefill_rosters
        eligible = kept.get((model, regions))
        if eligible is None:
            ready = self._ready(model, regions)
            members = [each for each in ready if (each[0].role is Role.PREFILL if at_large else _prefills(each))]
            fallback = PairingFallback.NO_DECODE_POD if at_large else None
            eligible = replace(engines_of(members, model, self.pool_ranks), fallback=fallback)
            self._keep(kept, model, regions, eligible)
        return eligible

    def serving(self, model: str, regions: frozenset[str] | None = None) -> list[Pod]:
        """The pods that may serve `model` now."""
        return [pod for pod in self._serving(model, regions) if pod.state is PodState.READY]

    def eligible_failing(self, model: str, regions: frozenset[str] | None = None) -> EligibleEngines:
        """The engines of pods that fail requests though their probes succeed: used where no others are left."""
        doubted = [pod for pod in self._serving(model, regions) if pod.state is PodState.SUSPECT]
        return engines_of([(engine, pod) for pod in doubted for engine in pod.engines], model, self.pool_ranks)

    def step_groups(self) -> dict[int, tuple[int, ...]]:
        """By slot of an engine that steps together with others, the slots of all of them, its own included."""
        groups: dict[str, list[int]] = {}
        for pod in self._pods.values():
            if (name := pod.step_group) is not None:
                groups.setdefault(name, []).extend(engine.slot for engine in pod.engines)
        return {slot: tuple(slots) for slots in groups.values() if len(slots) > 1 for slot in slots}

    def _ready(self, model: str, regions: frozenset[str] | None) -> list[tuple[Engine, Pod]]:
        return [(engine, pod) for pod in self.serving(model, regions) for engine in pod.engines]

    def _keep(
        self,
        rosters: dict[EligibleKey, EligibleEngines],
        model: str,
        regions: frozenset[str] | None,
        eligible: EligibleEngines,
    ) -> None:
        """Only names that exist are remembered: a client cannot grow this table by inventing models."""
        if self.knows(model):
            rosters[model, regions] = eligible

    def _forget_rosters(self) -> None:
        self.version += 1
        self._engines.clear()
        for rosters in (self._rosters, self._prefill_rosters, self._last_resorts):
            rosters.clear()

    def knows(self, model: str, regions: frozenset[str] | None = None) -> bool:
        """Whether any pod there, ready or not, has said that it serves `model`."""
        for pod in self._pods.values():  # noqa: SIM110 - `any` would cost a call for each pod, once per request
            if model in pod.models and (regions is None or pod.region in regions):
                return True
        return False

    def is_forbidden(self, request: Request) -> bool:
        """Whether the only pods that serve its model are of providers that it has no grant for."""
        served = list(self._serving(request.model, request.regions))
        return bool(served) and all(not may_compute(pod, request) for pod in served)

    @property
    def has_reported_models(self) -> bool:
        """Whether any pod has said what it serves."""
        return any(pod.has_reported_models for pod in self._pods.values())

    def takes_priority(self, url: str) -> bool:
        """Return whether the pod at a URL schedules by priority."""
        pod = self._pods.get(url)
        return pod is not None and pod.takes_priority

    def lacks_named(self, model: str) -> bool:
        """Whether the operator names a model that no pod serves."""
        return model in self.configured_models and not self.knows(model)

    def may_discover_more(self, regions: frozenset[str] | None = None) -> bool:
        """Whether pods there may serve a model that no known pod serves, because some have not reported yet."""
        return not self.is_complete or any(
            not pod.has_reported_models and (regions is None or pod.region in regions) for pod in self._pods.values()
        )

    def _serving(self, model: str, regions: frozenset[str] | None) -> Iterator[Pod]:
        for pod in self._pods.values():
            if model in pod.models and (regions is None or pod.region in regions):
                yield pod

    def models(self, regions: frozenset[str] | None = None) -> dict[str, tuple[Pod, ...]]:
        """Model name to the pods there that serve it, ready or not."""
        table: dict[str, list[Pod]] = {}
        for pod in self._pods.values():
            if regions is not None and pod.region not in regions:
                continue
            for model in sorted(pod.models):
                table.setdefault(model, []).append(pod)
        return {model: tuple(pods) for model, pods in table.items()}

    def recycle(self, slot: int) -> None:
        """Let a freed slot be given out again, once nothing charged to it is left."""
        self._free_slots.append(slot)

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._slots_made += 1
        return self._slots_made - 1


def may_compute(pod: Pod, request: Request) -> bool:
    """Return whether a request may be sent to a pod as far as providers are concerned: always within the fleet."""
    return pod.provider is None or (pod.provider, pod.region or "", request.model) in request.grants


def _prefills(member: tuple[Engine, Pod]) -> bool:
    """Whether an engine may prefill for another."""
    engine, pod = member
    return pod.facts.kv_connector is not None and engine.role is not Role.DECODE


def eligible_for(fleet: Fleet, request: Request, avoid: frozenset[str]) -> EligibleEngines:
    """Return the engines that may serve a request, without the pods to `avoid`. Raises `RequestRejected` for none."""
    model, regions = request.model, request.regions
    eligible = fleet.eligible(model, regions)
    if eligible.grants and (forbidden := eligible.forbidden_to(request.grants)):
        eligible = eligible.excluding(forbidden)
    if avoid or request.pods is not None:
        eligible = _left_of(eligible, request, avoid)
    if not eligible.engines and eligible.has_prefillers:
        eligible = _left_of(fleet.eligible_prefill(model, regions, at_large=True), request, avoid)
    if not eligible.engines:
        failing = fleet.eligible_failing(model, regions)
        eligible = _left_of(failing, request, avoid | failing.forbidden_to(request.grants) if failing.grants else avoid)
    if not eligible.engines:
        raise _no_engine_for(fleet, request)
    return eligible


def _left_of(eligible: EligibleEngines, request: Request, avoid: frozenset[str]) -> EligibleEngines:
    """Leave out the pods that have failed the request, and those that it may not go to."""
    if request.pods is not None:
        avoid |= {engine.pod for engine in eligible.engines} - request.pods
    return eligible.excluding(avoid) if avoid else eligible


def _no_engine_for(fleet: Fleet, request: Request) -> RequestRejected:
    model, regions = request.model, request.regions
    if fleet.is_forbidden(request):
        return _no_grant_for(model)
    if fleet.knows(model, regions):
        return _not_ready(f"No pod that serves `{model}` is ready.")
    if fleet.lacks_named(model):
        return _not_ready(f"No pod currently serves `{model}`.")
    if fleet.may_discover_more(regions):
        return _not_ready(f"No known pod in your regions serves `{model}`; the models of some pods are not known yet.")
    if not fleet.knows(model):
        return RequestRejected(Reason.UNKNOWN_MODEL, f"The model `{model}` does not exist.", param="model")
    text = f"The model `{model}` is not served in the regions that your tenant allows."
    return RequestRejected(Reason.REGION_NOT_ALLOWED, text, param="model")


def _no_grant_for(model: str) -> RequestRejected:
    text = f"The model `{model}` is served by a provider outside the fleet that your tenant's policy does not allow."
    return RequestRejected(Reason.PROVIDER_NOT_ALLOWED, text, param="model")


def _not_ready(text: str) -> RequestRejected:
    return RequestRejected(Reason.NO_POD_READY, text, param="model", retry_after_s=2.0)
