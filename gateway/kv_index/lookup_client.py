"""A worker's client of the precise prefix index: looks up the cached tokens of a prompt and reports its progress.

A lookup waits for a bounded time. Whatever fails, the request goes on with the approximate prefix index, and the reason
is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.ipc_messages import (
    EngineUpdate,
    FleetUpdate,
    FollowedEngines,
    LookupProgress,
    LookupRequest,
    LookupResponse,
    LookupStep,
    PodUpdate,
)
from gateway.runtime.guard import restarted
from routing.cache_lookup import CacheHit, CacheLookup
from routing.decision.router import Router
from routing.fleet import Fleet
from routing.pods import PodState
from routing.precise.lookup_notifier import LookupNotifier
from routing.request import Request

FLEET_CHECK_S = 0.5
"""Interval of checking whether the fleet has changed."""

PRECISE = "precise"
"""Outcome of a lookup that covers every engine that may serve the request."""

PARTIAL = "partial"
"""Outcome of a lookup that covers some of them."""

LATE_IN_A_ROW = 8
"""Timeouts in a row after which lookups pause: the index process hangs or is overloaded."""

PROBE_S = 1.0
"""Interval of single lookups that probe it meanwhile."""

AnswerWithSlots = tuple[LookupResponse, frozenset[int]]
"""An answer, and the slots of engines with reliable events at that time: those it does not name hold nothing."""


class CacheLookupClient:
    """The lookups of one worker."""

    def __init__(self, client: IndexProcessClient, router: Router, *, wait_s: float) -> None:
        self.outcomes: Counter[str] = Counter()
        """Lookups by outcome: `precise`, `partial`, or why the approximate index decided."""
        self.reasons: dict[str, str] = {}
        """Followed engines, and why their events are unreliable ('' where they are reliable)."""
        self._client = client
        self._router = router
        self._wait_s = wait_s
        self._waiting: dict[int, asyncio.Future[AnswerWithSlots]] = {}
        self._last_ticket = 0
        self._late = 0
        """Timeouts in a row."""
        self._probe_at_s = 0.0
        self._sent_version = self._sent_losses = -1
        self._reliable_slots: frozenset[int] = frozenset()
        router.subscribe(LookupNotifier())
        client.on(LookupResponse, self._take_given)
        client.on(FollowedEngines, self._take_followed)
        client.on_connected(self._greet)

    async def look_up(self, request: Request, body: bytes) -> Request:
        """Return the request with its cached tokens by engine, or unchanged where the lookup fails or is late."""
        if not request.api.generates or not request.reads_cache:
            return request
        ticket, answer = self._start(request, body)
        if answer is None:
            return request
        response = None
        try:
            async with asyncio.timeout(self._wait_s):
                response = await answer
        except TimeoutError:
            self.outcomes["timeout"] += 1
            self._late += 1
        finally:
            self._waiting.pop(ticket, None)
            if response is None:
                self._client.send(LookupProgress(ticket, LookupStep.ENDED))
        return request if response is None else self._with_hits(request, response)

    @restarted("precise index")
    async def run(self) -> None:
        """Report changes of the fleet to the index process until cancelled."""
        while True:
            await asyncio.sleep(FLEET_CHECK_S)
            if self._router.fleet.version != self._sent_version and self._client.is_connected:
                self._send_fleet()

    # -- one lookup ----------------------------------------------------------------------------------------------------

    def _start(self, request: Request, body: bytes) -> tuple[int, asyncio.Future[AnswerWithSlots] | None]:
        if request.regions is not None:
            # A pod of another region might be sent the prompt for tokenizing.
            self.outcomes["region"] += 1
            return 0, None
        if request.continues:
            # Only the pod that stored the previous response knows the prompt.
            self.outcomes["stored_response"] += 1
            return 0, None
        if not self.reasons:
            self.outcomes["no_engine_followed" if self._client.is_connected else "index_unreachable"] += 1
            return 0, None
        loop = asyncio.get_running_loop()
        if self._late >= LATE_IN_A_ROW:
            if loop.time() < self._probe_at_s:
                self.outcomes["paused_after_timeouts"] += 1
                return 0, None
            self._probe_at_s = loop.time() + PROBE_S
        if self._router.cache_losses != self._sent_losses and self._client.is_connected:
            # Otherwise the cache of a pod before its restart would be attributed to it now.
            self._send_fleet()
        self._last_ticket += 1
        answer: asyncio.Future[AnswerWithSlots] = loop.create_future()
        self._waiting[self._last_ticket] = answer
        if not self._client.send(LookupRequest(self._last_ticket, request.api.value, request.model, body)):
            del self._waiting[self._last_ticket]
            self.outcomes["index_unreachable"] += 1
            return 0, None
        return self._last_ticket, answer

    def _with_hits(self, request: Request, answer: AnswerWithSlots) -> Request:
        response, reliable_slots = answer
        if response.reason:
            self.outcomes[response.reason] += 1
            return request
        fleet, seen = self._router.fleet, dict[int, CacheHit]()
        for name, tokens, load_s in response.hits:
            engine = fleet.engine(name)
            if engine is not None:
                seen[engine.slot] = CacheHit(tokens, load_s)
        watch = LookupReporter(response.ticket, self._client.send)
        slots = fleet.eligible(request.model).slots
        known = sum(map(reliable_slots.__contains__, slots))
        self.outcomes[PRECISE if known == len(slots) else PARTIAL if known else "events_unreliable"] += 1
        return replace(request, lookup=CacheLookup(response.prompt_tokens, seen, reliable_slots, watch))

    def _take_given(self, response: LookupResponse) -> None:
        answer = self._waiting.get(response.ticket)
        if answer is not None and not answer.done():
            self._late = 0
            answer.set_result((response, self._reliable_slots))

    # -- state shared with the index process ---------------------------------------------------------------------------

    def _take_followed(self, followed: FollowedEngines) -> None:
        self.reasons = followed.unreliable
        self._router.set_unreliable_engines(followed.unreliable)
        self._update_slots()

    def _update_slots(self) -> None:
        """Find the slots of engines with reliable events: slots may be reassigned."""
        engines = (self._router.fleet.engine(name) for name, cause in self.reasons.items() if not cause)
        self._reliable_slots = frozenset(engine.slot for engine in engines if engine is not None)

    def _greet(self) -> None:
        # The index process sends its state again after every connect.
        self.reasons, self._reliable_slots = {}, frozenset()
        self._router.set_unreliable_engines({})
        self._send_fleet()

    def _send_fleet(self) -> None:
        self._update_slots()
        self._sent_version, self._sent_losses = self._router.fleet.version, self._router.cache_losses
        self._client.send(fleet_update(self._router.fleet, self._router.cache_generations))


class LookupReporter:
    """Reports the progress of one request to the index process."""

    __slots__ = ("_send", "_ticket")

    def __init__(self, ticket: int, send: Callable[[LookupProgress], bool]) -> None:
        self._ticket = ticket
        self._send = send

    def placed(self, engine: str) -> None:
        self._send(LookupProgress(self._ticket, LookupStep.PLACED, engine))

    def computed(self) -> None:
        self._send(LookupProgress(self._ticket, LookupStep.COMPUTED))

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        self._send(
            LookupProgress(self._ticket, LookupStep.ANSWERED, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        )

    def left(self) -> None:
        self._send(LookupProgress(self._ticket, LookupStep.LEFT))

    def over(self) -> None:
        self._send(LookupProgress(self._ticket, LookupStep.ENDED))


def fleet_update(fleet: Fleet, lives: dict[str, int]) -> FleetUpdate:
    """The message that lists the pods to follow: all of the fleet that have started.

    Those of providers are left out: the index process sends prompts to pods, to have them tokenized.
    """
    pods = (
        PodUpdate(
            pod.url,
            lives.get(pod.url, 0),
            tuple(sorted(pod.models)),
            tuple(sorted(pod.adapters)),
            tuple(card.name for card in pod.cards if card.parent is None),
            tuple(EngineUpdate(engine.name, engine.rank, engine.block_tokens) for engine in pod.engines),
        )
        for pod in fleet.pods
        if pod.state is not PodState.STARTING and pod.provider is None
    )
    return FleetUpdate(tuple(sorted(pods, key=lambda pod: pod.url)))


class LookupMetrics(Collector):
    """The lookup metrics of one worker."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self._ends = ends

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One metric family."""
        yield counter_by_label(
            "hearth_prefix_lookups",
            "Lookups: events of all engines (precise) or some (partial) decided, or why the approximate index did.",
            self._ends,
            label="result",
        )


def counter_by_label(name: str, words: str, counts: Mapping[str, int], label: str = "reason") -> CounterMetricFamily:
    """A counter family with one label."""
    counter = CounterMetricFamily(name, words, labels=(label,))
    for value, count in counts.items():
        counter.add_metric((value,), count)
    return counter
