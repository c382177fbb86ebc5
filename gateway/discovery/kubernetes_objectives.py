"""InferenceObjectives and InferenceModelRewrites of the followed InferencePools, as values for requests.

Objects are merged by age: the oldest wins, and each object that loses is logged once. Experimental; only sources with
`objectives` follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import Raw, Struct

from gateway.discovery.kubernetes_api import LogFunction, Reflector, ReflectorContext, ResourceQuery
from gateway.discovery.kubernetes_objects import ObjectMetadata
from routing.model_rewrite import ModelRewrite

MAX_WEIGHT = 1_000_000
"""Of a target."""


MAX_ENTRIES = 64
"""Rules of an object; matches and targets of a rule."""


GENERIC_RULE = "a rule without a model match is not supported and is ignored: name the models in its matches"


class PoolRef(Struct, frozen=True):
    name: str
    kind: str = "InferencePool"


class ObjectiveSpec(Struct, frozen=True, rename="camel"):
    pool_ref: PoolRef
    priority: int | None = None


class ObjectiveObject(Struct, frozen=True):
    """An InferenceObjective, v1alpha2."""

    metadata: ObjectMetadata
    spec: ObjectiveSpec


class ModelMatch(Struct, frozen=True):
    value: str
    type: str = "Exact"


class RequestMatch(Struct, frozen=True):
    model: ModelMatch | None = None


class TargetModel(Struct, frozen=True, rename="camel"):
    model_rewrite: str
    weight: int | None = None


class RewriteRule(Struct, frozen=True):
    targets: list[TargetModel]
    matches: list[RequestMatch] | None = None


class RewriteSpec(Struct, frozen=True, rename="camel"):
    pool_ref: PoolRef
    rules: list[RewriteRule]


class RewriteObject(Struct, frozen=True):
    """An InferenceModelRewrite, v1alpha2."""

    metadata: ObjectMetadata
    spec: RewriteSpec


@dataclass(frozen=True, slots=True)
class ObservedObjective:
    """The priority of one name."""

    created: str
    place: str
    """Namespace and name, as `NAMESPACE/NAME`."""
    name: str
    priority: int


@dataclass(frozen=True, slots=True)
class ObservedRewrite:
    """The rewrites of one object."""

    created: str
    place: str
    rewrites: tuple[tuple[str, ModelRewrite], ...]
    """Requested model and what answers; the first of a model counts."""
    has_generic_rule: bool
    """Whether it has a rule for every model, which is not supported."""


def read_objective(written: Raw, namespace: str, pools: Collection[str]) -> ObservedObjective | None:
    """Parse an InferenceObjective. Returns None if it belongs to none of `pools`. Raises ValueError."""
    made = msgspec.json.decode(written, type=ObjectiveObject)
    if not _belongs(made.spec.pool_ref, pools):
        return None
    name = made.metadata.name
    return ObservedObjective(_age(made.metadata), f"{namespace}/{name}", name, made.spec.priority or 0)


def read_rewrite(written: Raw, namespace: str, pools: Collection[str]) -> ObservedRewrite | None:
    """Parse an InferenceModelRewrite. Returns None if it belongs to none of `pools`. Raises ValueError."""
    made = msgspec.json.decode(written, type=RewriteObject)
    if not _belongs(made.spec.pool_ref, pools):
        return None
    if len(made.spec.rules) > MAX_ENTRIES:
        raise ValueError(f"spec.rules: more than {MAX_ENTRIES}")
    found: list[tuple[str, ModelRewrite]] = []
    has_generic_rule = False
    for at, rule in enumerate(made.spec.rules):
        rewrite = _rewrite_of(rule, f"spec.rules[{at}]")
        models = [match.model for match in rule.matches or ()]
        has_generic_rule |= not models or None in models
        found.extend((model.value, rewrite) for model in models if model is not None)
    return ObservedRewrite(_age(made.metadata), f"{namespace}/{made.metadata.name}", tuple(found), has_generic_rule)


def _rewrite_of(rule: RewriteRule, at: str) -> ModelRewrite:
    targets, matches = rule.targets, rule.matches or ()
    if not 0 < len(targets) <= MAX_ENTRIES or len(matches) > MAX_ENTRIES:
        raise ValueError(f"{at}: 1 to {MAX_ENTRIES} targets and at most {MAX_ENTRIES} matches are allowed")
    if any(match.model and (match.model.type != "Exact" or not match.model.value) for match in matches):
        raise ValueError(f"{at}.matches: only Exact matches of a model name are supported")
    if not all(target.model_rewrite for target in targets):
        raise ValueError(f"{at}.targets: modelRewrite is empty")
    if len({target.weight is None for target in targets}) > 1:
        raise ValueError(f"{at}.targets: set a weight for all targets or for none")
    weighted = tuple((target.model_rewrite, 1 if target.weight is None else target.weight) for target in targets)
    if not all(0 < weight <= MAX_WEIGHT for _, weight in weighted):
        raise ValueError(f"{at}.targets: a weight is 1 to {MAX_WEIGHT}")
    return ModelRewrite(weighted)


def _belongs(ref: PoolRef, pools: Collection[str]) -> bool:
    return ref.kind == "InferencePool" and ref.name in pools


def _age(metadata: ObjectMetadata) -> str:
    """Return the time of creation, which sorts as text; an object without one counts as the newest."""
    return metadata.creation_timestamp or "~"


@dataclass(frozen=True, slots=True)
class ObjectConflict:
    """An object that disagrees with an older one, which is used."""

    kind: str
    name: str
    """Namespace and name of the object that has no effect on `key`."""
    key: str
    """Objective or requested model."""
    used: str
    """Namespace and name of the older object."""


def _by_age(found: ObservedObjective | ObservedRewrite) -> tuple[str, str]:
    return found.created, found.place


def merge_objectives(found: Iterable[ObservedObjective]) -> tuple[dict[str, int], list[ObjectConflict]]:
    """Return the priority by name; of two objects with one name the oldest wins."""
    winners: dict[str, ObservedObjective] = {}
    conflicts: list[ObjectConflict] = []
    for each in sorted(found, key=_by_age):
        winner = winners.setdefault(each.name, each)
        if winner.priority != each.priority:
            conflicts.append(ObjectConflict("InferenceObjective", each.place, each.name, winner.place))
    return {name: each.priority for name, each in winners.items()}, conflicts


def merge_rewrites(found: Iterable[ObservedRewrite]) -> tuple[dict[str, ModelRewrite], list[ObjectConflict]]:
    """Return the rewrite by requested model; of two objects the oldest wins, within an object its first rule."""
    winners: dict[str, tuple[str, ModelRewrite]] = {}
    conflicts: list[ObjectConflict] = []
    for each in sorted(found, key=_by_age):
        for model, rewrite in each.rewrites:
            place, winner = winners.setdefault(model, (each.place, rewrite))
            if place != each.place and winner != rewrite:
                conflicts.append(ObjectConflict("InferenceModelRewrite", each.place, model, place))
    return {model: rewrite for model, (_, rewrite) in winners.items()}, conflicts


class InferenceRules:
    """Priorities of objectives and rewrites of models, of all sources. Written by the sources, read by requests."""

    def __init__(self, log_event: LogFunction, draw: Callable[[], float], *, warns: bool = True) -> None:
        """`draw`: uniform in [0, 1); `warns`: whether this process logs conflicts."""
        self._log_event, self._draw, self._warns = log_event, draw, warns
        self._objectives: dict[object, tuple[ObservedObjective, ...]] = {}
        self._rewrites: dict[object, tuple[ObservedRewrite, ...]] = {}
        self._by_name: Mapping[str, int] = {}
        self._by_model: Mapping[str, ModelRewrite] = {}
        self._logged: frozenset[ObjectConflict | str] = frozenset()
        """Conflicts, and places of objects with a rule for every model, that hold now."""

    def priority_of(self, objective: str) -> int | None:
        """Return the priority of an objective, None for an unknown name."""
        return self._by_name.get(objective)

    def rewrite(self, model: str) -> str:
        """Return the model that answers: the same one without a rewrite. Draws once per call."""
        found = self._by_model.get(model)
        return model if found is None else found.choose(self._draw())

    def rewrite_targets(self) -> dict[str, tuple[str, ...]]:
        """Return the models that may answer, by rewritten name."""
        return {name: tuple(target for target, _ in found.targets) for name, found in self._by_model.items()}

    def update(
        self,
        source: object,
        objectives: tuple[ObservedObjective, ...] | None,
        rewrites: tuple[ObservedRewrite, ...] | None,
    ) -> None:
        """Replace what a source has found; None: not listed yet, so its last list remains."""
        before = self._objectives.get(source), self._rewrites.get(source)
        if objectives is not None:
            self._objectives[source] = objectives
        if rewrites is not None:
            self._rewrites[source] = rewrites
        if before == (self._objectives.get(source), self._rewrites.get(source)):
            return
        self._by_name, conflicts = merge_objectives(one for each in self._objectives.values() for one in each)
        rewrites_found = [one for each in self._rewrites.values() for one in each]
        self._by_model, others = merge_rewrites(rewrites_found)
        generic = sorted(each.place for each in rewrites_found if each.has_generic_rule)
        if self._warns:
            self._log((*conflicts, *others), generic)
        self._logged = frozenset((*conflicts, *others, *generic))

    def _log(self, conflicts: Iterable[ObjectConflict], generic: Iterable[str]) -> None:
        """Log what was not so before."""
        for each in conflicts:
            if each not in self._logged:
                self._log_event(
                    "warning",
                    "kubernetes_object_conflict",
                    kind=each.kind,
                    name=each.name,
                    key=each.key,
                    used=each.used,
                )
        for place in generic:
            if place not in self._logged:
                self._log_event(
                    "warning",
                    "kubernetes_object_invalid",
                    path="inferencemodelrewrites",
                    name=place,
                    error=GENERIC_RULE,
                )


class RulesScope:
    """The reflections of both kinds in one namespace. Pods do not wait for them."""

    def __init__(self, ground: ReflectorContext, group: str, pools: Collection[str]) -> None:
        """`group`: their API group; `pools`: names of the InferencePools whose objects count."""
        path, namespace = f"/apis/{group}/v1alpha2/namespaces/{ground.namespace}", ground.namespace
        self._objectives: Reflector[ObservedObjective] = ground.start_reflector(
            ResourceQuery(f"{path}/inferenceobjectives", {}, partial(read_objective, namespace=namespace, pools=pools))
        )
        self._rewrites: Reflector[ObservedRewrite] = ground.start_reflector(
            ResourceQuery(f"{path}/inferencemodelrewrites", {}, partial(read_rewrite, namespace=namespace, pools=pools))
        )

    def report(self, source: object, rules: InferenceRules) -> None:
        """Hand over what has been listed."""
        objectives, rewrites = self._objectives, self._rewrites
        rules.update(
            source,
            tuple(objectives.held.values()) if objectives.is_complete_list else None,
            tuple(rewrites.held.values()) if rewrites.is_complete_list else None,
        )
