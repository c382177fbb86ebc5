"""A worker's side of exact warmth: asks the warmth process about a prompt, waits a little, and tells what became of it.

Whatever goes wrong there, requests go on as if nobody had asked: the shadow caches decide, and it is counted why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.cluster.host_client import WarmthClient
from gateway.cluster.ipc_messages import (
    EnginesFollowed,
    EngineTold,
    FleetTold,
    PodTold,
    SightAsked,
    SightGiven,
    SightMoved,
    Step,
)
from gateway.runtime.guard import restarted
from routing.cache_lookup import Seen, Sight
from routing.decision.router import Router
from routing.fleet import Fleet
from routing.pods import Standing
from routing.precise.lookup_notifier import LookupNotifier
from routing.request import Request

TELL_EVERY_S = 0.5
"""Between two looks at whether the fleet has changed."""

EXACT = "exact"
"""How a question ends well: the events decided for every engine that may serve it."""

PARTLY = "partly"
"""They decided for some."""


LATE_IN_A_ROW = 8
"""Answers that were late one after the other: the warmth process hangs, or has more to do than it can."""

ASK_AGAIN_S = 1.0
"""Until a next question tries whether it is well again: nobody else waits meanwhile."""


Given = tuple[SightGiven, frozenset[int]]
"""An answer, and the slots of engines whose events decided when it came: of them, who is not named holds nothing."""


class Asking:
    """One per worker that may ask."""

    def __init__(self, client: WarmthClient, router: Router, *, wait_s: float) -> None:
        self.ends: Counter[str] = Counter()
        """How questions ended: `exact`, `partly`, or why the shadow caches decided."""
        self.doubts: dict[str, str] = {}
        """Engines whose events are followed, and why these do not decide; empty where they do."""
        self._client = client
        self._router = router
        self._wait_s = wait_s
        self._waiting: dict[int, asyncio.Future[Given]] = {}
        self._ticket = 0
        self._late = 0
        """In a row."""
        self._ask_again_s = 0.0
        self._told_version = self._told_losses = -1
        self._known: frozenset[int] = frozenset()
        router.observe(LookupNotifier())
        client.on(SightGiven, self._take_given)
        client.on(EnginesFollowed, self._take_followed)
        client.on_connected(self._greet)

    async def look(self, request: Request, body: bytes) -> Request:
        """The request with what was seen of it, or as it was. Waits no longer than it may."""
        if not request.api.generates:
            return request
        ticket, answer = self._ask(request, body)
        if answer is None:
            return request
        given = None
        try:
            async with asyncio.timeout(self._wait_s):
                given = await answer
        except TimeoutError:
            self.ends["late"] += 1
            self._late += 1
        finally:
            self._waiting.pop(ticket, None)
            if given is None:
                self._client.send(SightMoved(ticket, Step.OVER))
        return request if given is None else self._seen(request, given)

    @restarted("exact warmth")
    async def run(self) -> None:
        """Tell the warmth process of changes in the fleet, until cancelled."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            if self._router.fleet.version != self._told_version and self._client.is_connected:
                self._tell()

    # -- one question --------------------------------------------------------------------------------------------------

    def _ask(self, request: Request, body: bytes) -> tuple[int, asyncio.Future[Given] | None]:
        if request.regions is not None:
            # To count its tokens, a pod of another region might be shown the prompt.
            self.ends["region"] += 1
            return 0, None
        if request.continues:
            # Only the pod that stored the beginning knows it.
            self.ends["stored"] += 1
            return 0, None
        if not self.doubts:
            self.ends["nobody_followed" if self._client.is_connected else "away"] += 1
            return 0, None
        loop = asyncio.get_running_loop()
        if self._late >= LATE_IN_A_ROW:
            if loop.time() < self._ask_again_s:
                self.ends["slow"] += 1
                return 0, None
            self._ask_again_s = loop.time() + ASK_AGAIN_S
        if self._router.losses != self._told_losses and self._client.is_connected:
            # Else what a pod held in a former life would be believed of this one.
            self._tell()
        self._ticket += 1
        answer: asyncio.Future[Given] = loop.create_future()
        self._waiting[self._ticket] = answer
        if not self._client.send(SightAsked(self._ticket, request.api.value, request.model, body)):
            del self._waiting[self._ticket]
            self.ends["away"] += 1
            return 0, None
        return self._ticket, answer

    def _seen(self, request: Request, answer: Given) -> Request:
        given, known_slots = answer
        if given.why:
            self.ends[given.why] += 1
            return request
        fleet, seen = self._router.fleet, dict[int, Seen]()
        for name, tokens, load_s in given.seen:
            engine = fleet.engine(name)
            if engine is not None:
                seen[engine.slot] = Seen(tokens, load_s)
        watch = Watching(given.ticket, self._client.send)
        slots = fleet.roster(request.model).slots
        known = sum(map(known_slots.__contains__, slots))
        self.ends[EXACT if known == len(slots) else PARTLY if known else "doubt"] += 1
        return replace(request, sight=Sight(given.prompt_tokens, seen, known_slots, watch))

    def _take_given(self, given: SightGiven) -> None:
        answer = self._waiting.get(given.ticket)
        if answer is not None and not answer.done():
            self._late = 0
            answer.set_result((given, self._known))

    # -- what both sides know ------------------------------------------------------------------------------------------

    def _take_followed(self, followed: EnginesFollowed) -> None:
        self.doubts = followed.doubts
        self._router.set_event_doubts(followed.doubts)
        self._know()

    def _know(self) -> None:
        """Which slots belong to engines whose events decide. Slots may change hands."""
        engines = (self._router.fleet.engine(name) for name, doubt in self.doubts.items() if not doubt)
        self._known = frozenset(engine.slot for engine in engines if engine is not None)

    def _greet(self) -> None:
        # Whatever was known of the process before it went away, it says anew.
        self.doubts, self._known = {}, frozenset()
        self._router.set_event_doubts({})
        self._tell()

    def _tell(self) -> None:
        self._know()
        self._told_version, self._told_losses = self._router.fleet.version, self._router.losses
        self._client.send(tell_fleet(self._router.fleet, self._router.lives))


class Watching:
    """Tells the warmth process what becomes of one request."""

    __slots__ = ("_send", "_ticket")

    def __init__(self, ticket: int, send: Callable[[SightMoved], bool]) -> None:
        self._ticket = ticket
        self._send = send

    def placed(self, engine: str) -> None:
        self._send(SightMoved(self._ticket, Step.PLACED, engine))

    def computed(self) -> None:
        self._send(SightMoved(self._ticket, Step.COMPUTED))

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        self._send(SightMoved(self._ticket, Step.ANSWERED, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens))

    def left(self) -> None:
        self._send(SightMoved(self._ticket, Step.LEFT))

    def over(self) -> None:
        self._send(SightMoved(self._ticket, Step.OVER))


def tell_fleet(fleet: Fleet, lives: dict[str, int]) -> FleetTold:
    """The pods that are worth following."""
    pods = (
        PodTold(
            pod.url,
            lives.get(pod.url, 0),
            tuple(sorted(pod.models)),
            tuple(sorted(pod.adapters)),
            tuple(card.name for card in pod.cards if card.parent is None),
            tuple(EngineTold(engine.name, engine.rank, engine.block_tokens) for engine in pod.engines),
        )
        for pod in fleet.pods
        if pod.standing is not Standing.STARTING
    )
    return FleetTold(tuple(sorted(pods, key=lambda pod: pod.url)))


class AskingExposition(Collector):
    """A worker's: how its questions ended."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self._ends = ends

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One family."""
        yield by_why(
            "hearth_sights",
            "Requests by who knew what engines hold: events of all (exact) or some (partly), or why the shadow caches.",
            self._ends,
            label="outcome",
        )


def by_why(name: str, words: str, counts: Mapping[str, int], label: str = "why") -> CounterMetricFamily:
    """One counter by one label."""
    counter = CounterMetricFamily(name, words, labels=(label,))
    for why, count in counts.items():
        counter.add_metric((why,), count)
    return counter
