"""The routing state: what decisions read and placements change, and how it follows pods that come and go.

One per gateway process; a watcher writes the fleet, placements and updates of other replicas charge the rest. Every
method is synchronous, so no decision sees a half-made change. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy

from routing.affinity import LastSeen, Whereabouts
from routing.blocks import Prompt
from routing.cost import CostBook
from routing.demand import Demand
from routing.fleet import Fleet
from routing.ledger import NOTHING_FOREIGN, Foreign, Ledger
from routing.observers import Observers, PlacementObserver, Report, drop
from routing.pods import EngineShape, Pod
from routing.prefix_index import Trace, WarmIndex
from routing.request import Usage
from routing.stores import Stores
from routing.tokens import USUAL_BYTES_PER_TOKEN, ExactCounter, TokenCounter

UNKNOWN_KV_TOKENS = 200_000
"""KV capacity assumed for an engine that does not report it: small, so that its estimated cache forgets early."""

REMEMBERED_SESSIONS = 1 << 17

REMEMBERED_ADAPTERS = 1 << 12


class RoutingState:
    """Fleet, ledger, prefix index, costs and affinity of one router."""

    def __init__(
        self,
        *,
        costs: CostBook | None = None,
        index: WarmIndex | None = None,
        exact_sizes: bool = False,
        report: Report = drop,
    ) -> None:
        """`exact_sizes`: prompt sizes are tokens, not bytes. `report` receives what observers raise."""
        self.fleet = Fleet()
        self.ledger = Ledger()
        self.index = index or WarmIndex()
        self.costs = costs or CostBook()
        self.demand = Demand()
        self.sessions = Whereabouts(REMEMBERED_SESSIONS)
        self.responses = Whereabouts(REMEMBERED_SESSIONS)
        self.adapters: LastSeen[tuple[str, int], int] = LastSeen(REMEMBERED_ADAPTERS)
        self.stores = Stores()
        self.lives: dict[str, int] = {}
        """How often each pod has lost its cache, by URL."""
        self.losses = 0
        """How often any pod has."""
        self.event_doubts: Mapping[str, str] = {}
        """Engines whose KV events are followed, by name, and why these do not decide; empty text where they do."""
        self.observers: Observers | None = None
        """None while nothing is subscribed."""
        self._report = report
        self._counters: dict[str, TokenCounter | ExactCounter] = {}
        self._exact_sizes = exact_sizes
        self.retired: set[int] = set()
        """Slots of engines that are gone, while requests are still charged to them."""

    def observe(self, *observers: PlacementObserver) -> None:
        """Subscribe to all placements from now on."""
        members = self.observers.members if self.observers is not None else ()
        self.observers = Observers((*members, *observers), self._report)

    # -- pods, written by one watcher ----------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or replace its standing and models."""
        self.fleet.put(pod)

    def reshape_pod(self, url: str, shapes: Iterable[EngineShape]) -> None:
        """Take over the engines that a pod reports, and their KV capacity."""
        self._retire(self.fleet.reshape(url, shapes))
        self.ledger.reach(self.fleet.slot_count)
        self.costs.reach(self.fleet.slot_count)
        self.resize_caches(url)

    def resize_caches(self, url: str) -> None:
        """Recompute the estimated cache sizes of a pod from the bytes per token that are known now."""
        pod = self.fleet.pod(url)
        for engine in pod.engines if pod else ():
            held = engine.kv_tokens or UNKNOWN_KV_TOKENS
            self.index.resize(engine.slot, int(held * self._pod_size_per_token(url)))

    def remove_pod(self, url: str) -> None:
        """Forget a pod. Requests that still run there are released as they end."""
        self.lives.pop(url, None)
        self._retire(self.fleet.remove(url))

    def forget_warmth(self, url: str) -> None:
        """A pod has restarted or emptied its cache: forget its cached prefixes."""
        self.lives[url] = self.lives.get(url, 0) + 1
        self.losses += 1
        self.fleet.version += 1
        pod = self.fleet.pod(url)
        for engine in pod.engines if pod else ():
            self.index.forget(engine.slot)
        self.resize_caches(url)

    def observe_load(self, slot: int, foreign: Foreign) -> None:
        """Take over the external load of a scrape."""
        self.ledger.observe(slot, foreign)

    def set_event_doubts(self, doubts: Mapping[str, str]) -> None:
        """Take over which engines' KV events are followed, and why those of some do not decide. For display only."""
        self.event_doubts = doubts

    # -- what placements teach, and what they leave --------------------------------------------------------------------

    def counter(self, model: str) -> TokenCounter | ExactCounter:
        """The token counter of a model that the fleet knows."""
        counter = self._counters.get(model)
        if counter is None:
            counter = ExactCounter() if self._exact_sizes else TokenCounter(USUAL_BYTES_PER_TOKEN)
            self._counters[model] = counter
        return counter

    def learn_usage(self, model: str, trace: Trace, usage: Usage, grown: Prompt | None) -> None:
        """Learn from a prompt that an engine has counted: its length in tokens, and how much was really cached.

        `grown` is the prompt followed by its response, where that is known.
        """
        counter = self.counter(model)
        counter.learn(trace.prompt, usage.prompt_tokens)
        if usage.cached_tokens is not None:
            self.index.correct(trace, trace.prompt.size * usage.cached_tokens / usage.prompt_tokens)
        if grown is not None:
            self.index.grow(trace, grown)
            counter.remember(grown, usage.prompt_tokens + usage.completion_tokens)

    def recycle(self, slot: int) -> None:
        """Free a retired slot once nothing is charged to it, with nothing of its last engine left in it."""
        if slot not in self.retired or self.ledger.running[slot]:
            return
        self.retired.discard(slot)
        self.clear_slot(slot)
        self.fleet.recycle(slot)

    def clear_slot(self, slot: int) -> None:
        """Forget what was learned of the engine that stood in a slot."""
        self.costs.forget(slot)
        self.stores.forget(slot)
        self.ledger.observe(slot, NOTHING_FOREIGN)
        for table in (self.sessions, self.responses, self.adapters):
            table.drop_value(slot)

    def for_replay(self) -> RoutingState:
        """A view that shares all that is learned but has a ledger of its own: to replay the past of other replicas."""
        replay = copy(self)
        replay.ledger = Ledger()
        replay.observers = None
        replay.retired = set()
        return replay

    def _pod_size_per_token(self, url: str) -> float:
        pod = self.fleet.pod(url)
        counters = [self._counters[model] for model in (pod.models if pod else ()) if model in self._counters]
        unknown = ExactCounter.size_per_token if self._exact_sizes else USUAL_BYTES_PER_TOKEN
        return max((counter.size_per_token for counter in counters), default=unknown)

    def _retire(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.index.forget(slot)
            self.retired.add(slot)
            self.recycle(slot)
