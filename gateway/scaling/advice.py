"""What is advised about a model beside the number of its engines: work that leaves the first pools, and a split.

Made by the gateway that decides, about each model with its decision; the others show and apply what it has sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from gateway.scaling.figures import SpillFigure, SplitFigure
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.kv_bytes import DEFAULT_KV_BYTES
from routing.pairing.links import FIXED_S, Link, bytes_per_s, nearest_link
from supply.load import ModelLoad
from supply.policy import ControlMode, SupplyPolicy
from supply.preference import SpillMemory, spill_decision
from supply.split_advice import KvTransfer, PricedEngine, choose_split

SPLIT_S = 60.0
"""Interval at which a split is judged: a few milliseconds for each model."""


@dataclass(slots=True)
class _ModelMemory:
    """What is remembered of one model between two looks."""

    spill: SpillMemory = field(default_factory=SpillMemory)
    split_s: float | None = None


class FleetAdviser:
    """The advice about all models, and what it remembers. Times are seconds of one clock."""

    def __init__(self, router: Router, policy: SupplyPolicy) -> None:
        self.spill: dict[str, SpillFigure] = {}
        self.split: dict[str, SplitFigure] = {}
        self._router = router
        self._policy = policy
        self._models: dict[str, _ModelMemory] = {}

    def adopt(self, spill: Mapping[str, SpillFigure]) -> None:
        """Continue with the shares of the gateway that decided before."""
        for model, figure in spill.items():
            self._models.setdefault(model, _ModelMemory()).spill = SpillMemory(figure.share)

    def look(self, load: ModelLoad, now_s: float) -> None:
        """Advise about one model."""
        memory = self._models.setdefault(load.model, _ModelMemory())
        if self._policy.spill is not ControlMode.OFF:
            self._look_at_spill(load, memory, now_s)
        if memory.split_s is None or now_s - memory.split_s >= SPLIT_S:
            memory.split_s = now_s
            self._look_at_split(load)

    def forget(self, known: Iterable[str]) -> None:
        """Drop what is known of other models."""
        for model in self._models.keys() - set(known):
            del self._models[model]
            self.spill.pop(model, None)
            self.split.pop(model, None)

    def _look_at_spill(self, load: ModelLoad, memory: _ModelMemory, now_s: float) -> None:
        if len({pool.rank for pool in load.pools}) < 2:
            memory.spill = SpillMemory()
            self.spill.pop(load.model, None)
            return
        # Where prefill and decode are apart, work leaves by its prefill: the rest follows it.
        roles = {pool.role for pool in load.pools}
        role = Role.EITHER if Role.EITHER in roles else Role.PREFILL
        found, memory.spill = spill_decision(load, self._policy, memory.spill, now_s, role=role)
        self.spill[load.model] = SpillFigure(
            found.share, found.reason.value, [*found.home], [*found.beyond], [*found.leaving], [*found.missed]
        )

    def _look_at_split(self, load: ModelLoad) -> None:
        lowest = min(pool.rank for pool in load.pools)
        kinds = {pool.pool: PricedEngine(pool.speed, pool.price_per_hour) for pool in load.pools if pool.rank == lowest}
        choice = choose_split(load.tiers, kinds, self._transfer(load.model))
        found = choice.advice
        self.split[load.model] = SplitFigure(
            found.verdict.value,
            choice.colocated,
            choice.prefill,
            choice.decode,
            found.colocated_engines,
            found.prefill_engines,
            found.decode_engines,
            found.colocated_per_hour,
            found.split_per_hour,
            found.colocated_per_million,
            found.split_per_million,
            found.prefill_s,
            found.decode_s,
            found.price_ratio,
            found.transfer_s,
        )

    def _transfer(self, model: str) -> KvTransfer:
        """Return what a hand-over of KV takes between the two nearest pods of a model."""
        router = self._router
        facts = [pod.facts for pod in router.fleet.serving(model)]
        reported = next((each.kv_bytes_per_token for each in facts if each.kv_bytes_per_token), None)
        kv_bytes = router.pairing.kv_bytes.get(model) or reported or DEFAULT_KV_BYTES
        links = ((nearest_link(one, other), one, other) for one, other in pairwise(facts))
        link, one, other = min(links, key=lambda each: each[0], default=(Link.FAR, PodFacts(), PodFacts()))
        return KvTransfer(kv_bytes, bytes_per_s(link, one, other), FIXED_S)
