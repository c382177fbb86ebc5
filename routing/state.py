"""The routing state: what decisions read and placements change, and how it follows pods that come and go.

One per gateway process; a watcher writes the fleet, placements and updates of other replicas charge the rest. Every
method is synchronous, so no decision sees a half-made change. Reads no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from math import inf

from routing.affinity import LastSlots, RecentMap
from routing.blocks import PackedPrompt, Prompt
from routing.cost import CostModel
from routing.decode_pace import DecodePace
from routing.demand import PrefixDemand
from routing.fleet import Fleet
from routing.ledger import NO_EXTERNAL_LOAD, ExternalLoad, Ledger
from routing.observers import ObserverList, PlacementObserver, Report, report_nowhere
from routing.pods import Engine, EngineShape, Pod
from routing.prefix_index import CacheInsertion, PrefixIndex
from routing.request import Request, Usage
from routing.stores import KvStores
from routing.tokens import DEFAULT_BYTES_PER_TOKEN, ExactCounter, TokenCounter

UNKNOWN_KV_TOKENS = 200_000
"""KV capacity assumed for an engine that does not report it: small, so that its estimated cache forgets early."""

MISSING_UNSCRAPED_S = 15.0
"""So long after a peer went missing scrapes may not show yet what it has on the engines."""

MAX_MISSING_S = 600.0
"""After this time load that scrapes show is taken to be of others than missing peers."""

MAX_UNEXPLAINED = 2.0
"""Requests on an engine that a scrape shows beyond the known ones and that need not be a missing peer's."""

MAX_SESSIONS = 1 << 17

MAX_ADAPTERS = 1 << 12


class RoutingState:
    """Fleet, ledger, prefix index, costs and affinity of one router."""

    def __init__(
        self,
        *,
        costs: CostModel | None = None,
        index: PrefixIndex | None = None,
        exact_sizes: bool = False,
        report: Report = report_nowhere,
    ) -> None:
        """`exact_sizes`: prompt sizes are tokens, not bytes. `report` receives what observers raise."""
        self.fleet = Fleet()
        self.ledger = Ledger()
        self.index = index or PrefixIndex()
        self.costs = costs or CostModel()
        self.decode_pace = DecodePace(self.costs.prior)
        self.constrained_excess_s: dict[int, float] = {}
        """Extra seconds a token of constrained requests, by slot: of engines that diagnosis has named. The next: of
        other requests, on the engines beside those.
        """
        self.plain_excess_s: dict[int, float] = {}
        self.spill_shares: Mapping[str, float] = {}
        """Share of the requests of a model that leave the pools of the lowest rank, where residency lets them."""
        self.prefix_demand = PrefixDemand()
        self.sessions = LastSlots(MAX_SESSIONS)
        self.responses = LastSlots(MAX_SESSIONS)
        self.adapters: RecentMap[tuple[str, int], int] = RecentMap(MAX_ADAPTERS)
        self.stores = KvStores()
        self.cache_generations: dict[str, int] = {}
        """How often each pod has lost its cache, by URL."""
        self.cache_losses = 0
        """How often any pod has."""
        self.unreliable_engines: Mapping[str, str] = {}
        """Engines whose KV events are followed, by name, and why these do not decide; empty text where they do."""
        self.peers_missing_s: float | None = None
        """Since when a peer has not been heard that may still place requests; None where none is missing."""
        self.peers_found_s = -inf
        """When the last of those that were missing was found, or was removed."""
        self.observers: ObserverList | None = None
        """None while nothing is subscribed."""
        self._report = report
        make_counter = ExactCounter if exact_sizes else partial(TokenCounter, DEFAULT_BYTES_PER_TOKEN)
        self.counters: defaultdict[str, TokenCounter | ExactCounter] = defaultdict(make_counter)
        """The token counter of each model. Look up served models only: each look-up creates one."""
        self._exact_sizes = exact_sizes
        self.retired: set[int] = set()
        """Slots of engines that are gone, while requests are still charged to them."""

    def subscribe(self, *observers: PlacementObserver) -> None:
        """Subscribe to all placements from now on."""
        members = self.observers.members if self.observers is not None else ()
        self.observers = ObserverList((*members, *observers), self._report)

    # -- pods, written by one watcher ----------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or replace its standing and models."""
        self.fleet.put(pod)
        if pod.facts.ep or self.ledger.step_groups:
            self._couple()

    def reshape_pod(self, url: str, shapes: Iterable[EngineShape]) -> None:
        """Take over the engines that a pod reports, and their KV capacity."""
        self._retire(self.fleet.reshape(url, shapes))
        self.ledger.resize(self.fleet.slot_count)
        self.costs.resize(self.fleet.slot_count)
        self.resize_caches(url)
        pod = self.fleet.pod(url)
        if pod is not None and (pod.facts.ep or self.ledger.step_groups):
            self._couple()

    def resize_caches(self, url: str) -> None:
        """Recompute the estimated cache sizes of a pod from the bytes per token that are known now."""
        pod = self.fleet.pod(url)
        for engine in pod.engines if pod else ():
            held = engine.kv_tokens or UNKNOWN_KV_TOKENS
            self.index.resize(engine.slot, int(held * self._pod_size_per_token(url)))

    def remove_pod(self, url: str) -> None:
        """Forget a pod. Requests that still run there are released as they end."""
        self.cache_generations.pop(url, None)
        slots = self.fleet.remove(url)
        if self.ledger.step_groups:
            self._couple()
        self._retire(slots)

    def clear_caches(self, url: str) -> None:
        """A pod has restarted or emptied its cache: forget its cached prefixes."""
        self.cache_generations[url] = self.cache_generations.get(url, 0) + 1
        self.cache_losses += 1
        self.fleet.version += 1
        pod = self.fleet.pod(url)
        for engine in pod.engines if pod else ():
            self.index.clear(engine.slot)
        self.resize_caches(url)

    def observe_load(self, slot: int, external: ExternalLoad) -> None:
        """Take over the external load of a scrape."""
        self.ledger.observe_external(slot, external)

    def set_token_excess(self, constrained_s: Mapping[str, float], plain_s: Mapping[str, float]) -> None:
        """Take over the extra seconds a token of constrained and of other requests, by URL of the pod; all other pods
        have none.
        """
        self.constrained_excess_s, self.plain_excess_s = self._by_slot(constrained_s), self._by_slot(plain_s)

    def _by_slot(self, seconds: Mapping[str, float]) -> dict[int, float]:
        pods = ((self.fleet.pod(url), excess_s) for url, excess_s in seconds.items())
        return {engine.slot: excess_s for pod, excess_s in pods if pod is not None for engine in pod.engines}

    def set_unreliable_engines(self, reasons: Mapping[str, str]) -> None:
        """Take over which engines' KV events are followed, and why those of some do not decide. For display only."""
        self.unreliable_engines = reasons

    def has_unexplained_load(self, now_s: float) -> bool:
        """Whether scrapes show requests of missing peers on any engine, or cannot show them yet."""
        missing_s = self.peers_missing_s
        if missing_s is None or now_s >= missing_s + MAX_MISSING_S:
            return False
        return now_s < missing_s + MISSING_UNSCRAPED_S or any(
            load.running > MAX_UNEXPLAINED for load in self.ledger.external
        )

    # -- what placements teach, and what they leave --------------------------------------------------------------------

    def learn_usage(
        self,
        model: str,
        trace: CacheInsertion,
        usage: Usage,
        grown: Prompt | PackedPrompt | None,
        request: Request | None = None,
        *,
        tenant: str | None = None,
    ) -> None:
        """Learn from a prompt that an engine has counted: its length in tokens, and how much was really cached.

        `grown` is the prompt followed by its response, where that is known; `request` and `tenant`: whose it was, where
        that is known.
        """
        counter = self.counters[model]
        if request is None or request.counts_text:
            counter.learn(trace.prompt, usage.prompt_tokens, tenant if request is None else request.tenant)
        else:
            counter.remember(trace.prompt, usage.prompt_tokens)
        if usage.cached_tokens is not None:
            self.index.correct(trace, trace.prompt.size * usage.cached_tokens / usage.prompt_tokens)
        self._remember_grown(model, trace, usage, grown)

    def remember_usage(
        self, model: str, trace: CacheInsertion, usage: Usage, grown: Prompt | PackedPrompt | None
    ) -> None:
        """Keep what only this prompt's next turn needs, and learn nothing of others: `learn_usage` of one in many."""
        self.counters[model].remember(trace.prompt, usage.prompt_tokens)
        self._remember_grown(model, trace, usage, grown)

    def _remember_grown(
        self, model: str, trace: CacheInsertion, usage: Usage, grown: Prompt | PackedPrompt | None
    ) -> None:
        if grown is not None:
            self.index.extend(trace, grown)
            self.counters[model].remember(grown, usage.prompt_tokens + usage.completion_tokens)

    def is_in_slot(self, engine: Engine) -> bool:
        """Whether an engine is still the one in its slot."""
        known = self.fleet.engine(engine.name)
        return known is not None and known.slot == engine.slot

    def recycle(self, slot: int) -> None:
        """Free a retired slot once nothing is charged to it, with nothing of its last engine left in it."""
        if slot not in self.retired or self.ledger.running[slot]:
            return
        self.retired.discard(slot)
        self.clear_slot(slot)
        self.fleet.recycle(slot)

    def clear_slot(self, slot: int) -> None:
        """Reset what was learned of the slot's former engine."""
        self.costs.forget(slot)
        self.constrained_excess_s.pop(slot, None)
        self.plain_excess_s.pop(slot, None)
        self.decode_pace.forget(slot)
        self.stores.forget(slot)
        self.ledger.observe_external(slot, NO_EXTERNAL_LOAD)
        for table in (self.sessions, self.responses, self.adapters):
            table.remove_value(slot)

    def for_replay(self) -> RoutingState:
        """A view that shares all that is learned but has a ledger of its own: to replay the past of other replicas."""
        replay = copy(self)
        replay.ledger = Ledger()
        replay.observers = None
        replay.retired = set()
        return replay

    def _pod_size_per_token(self, url: str) -> float:
        pod = self.fleet.pod(url)
        counters = [self.counters[model] for model in (pod.models if pod else ()) if model in self.counters]
        unknown = ExactCounter.size_per_token if self._exact_sizes else DEFAULT_BYTES_PER_TOKEN
        return max((counter.size_per_token for counter in counters), default=unknown)

    def _couple(self) -> None:
        self.ledger.step_groups = self.fleet.step_groups()

    def _retire(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.index.clear(slot)
            self.retired.add(slot)
            self.recycle(slot)
