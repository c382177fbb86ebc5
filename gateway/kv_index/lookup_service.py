"""Answers the workers' questions what engines hold of a prompt, and learns from what it really was.

Every question is answered once, soon or not at all: who asked has a time limit. Engines in doubt are looked at all the
same, but only to find out whether they can be believed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.cluster.ipc import Line
from gateway.cluster.ipc_messages import EnginesFollowed, FleetTold, PodTold, SightAsked, SightGiven, SightMoved, Step
from gateway.config.exact import LoadTimes, TokenizerEntry
from gateway.config.values import Settings
from gateway.kv_index.followers import Followers
from gateway.kv_index.prompts import UnseenError
from gateway.kv_index.tokenizing import Asked, Tokenizing
from gateway.observe.log import EventLog
from gateway.runtime.guard import restarted, run
from routing.precise.event_reliability import Doubt
from routing.precise.precise_index import NOTHING_HELD, ExactIndex, Held
from routing.precise.token_chains import LINK_TOKENS, Ends, alike
from routing.request import Api

TELL_EVERY_S = 0.25
"""Between two looks at whether a worker must be told of a change in whom we follow. Who asks is told before."""

EVENTS_WITHIN_S = 2.0
"""How late an engine's events may be behind its answer. They come from a thread of their own: usually within a
millisecond, after many where the machine is busy. Till then what was computed counts as held.
"""

MOST_TICKETS = 1 << 14
"""Requests under way whose questions were answered; beyond it the oldest are forgotten."""

SIBLING_WAIT_S = 0.01
"""How long a question waits for one that was asked just before it and begins alike to be placed."""

US = 1e-6


@dataclass(slots=True)
class Ticket:
    """A question that was answered, until its request has left."""

    model: str
    ends: Ends
    found: Mapping[str, Held] = field(default_factory=dict)
    engine: str = ""
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It was placed, or will not be."""


class Sights:
    """One per warmth process."""

    def __init__(self, settings: Settings, say: EventLog) -> None:
        words = settings.kv_events
        if words is None:
            raise ValueError("exact warmth was not asked for")
        self.index = ExactIndex(most_blocks=words.most_blocks)
        self.followers = Followers(words, self.index, say)
        self.tokenizing = Tokenizing(_entries(settings), cache_bytes=words.tokenizer_cache_mb << 20, say=say)
        self.unseen: dict[str, int] = {}
        """Questions that found no answer, by why."""
        self._say = say
        self._load_s = _load_seconds(words.load_us_per_token)
        self._fleets: dict[Line, FleetTold] = {}
        self._pods: dict[str, PodTold] = {}
        self._asking: set[tuple[int, int]] = set()
        """Questions that are not answered yet and whose askers still wait."""
        self._tickets: dict[tuple[int, int], Ticket] = {}
        self._newest: dict[int, Ticket] = {}
        """The last prompt that was asked about and is not placed yet, by its first link."""
        self._told: EnginesFollowed | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow and answer until cancelled."""
        self.tokenizing.warm_up()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.followers.run(), name="follow KV events")
                group.create_task(self._keep_telling(), name="tell whom we follow")
        finally:
            for task in self._tasks:
                task.cancel()
            await self.tokenizing.close()

    def renew(self, settings: Settings) -> None:
        """Other tokenizers for some models. All else of it wants a restart."""
        self.tokenizing.renew(_entries(settings))

    # -- what workers say ------------------------------------------------------------------------------------------

    def take_fleet(self, line: Line, told: FleetTold) -> None:
        """A worker says which pods there are. Workers see the same; who sees more is right."""
        self._fleets[line] = told
        self._renew_fleet()
        if self._told is not None:
            line.send(self._told)

    def take_asked(self, line: Line, asked: SightAsked) -> None:
        """A worker asks."""
        self._asking.add((id(line), asked.ticket))
        task = asyncio.get_running_loop().create_task(self._answer(line, asked), name="see a prompt")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_moved(self, line: Line, moved: SightMoved) -> None:
        """A worker says what became of a request."""
        key = (id(line), moved.ticket)
        ticket = self._tickets.get(key)
        if ticket is None:
            # Over before it was answered: nobody waits for it any more.
            self._asking.discard(key)
            return
        promise = f"{key[0]}/{key[1]}"
        match moved.step:
            case Step.PLACED:
                self.index.withdraw(promise)
                ticket.engine = moved.engine
                self.index.promise(promise, moved.engine, ticket.ends)
                self._settle(ticket)
            case Step.COMPUTED:
                self._expect(promise)
            case Step.ANSWERED:
                # A whole answer at once comes without a first token.
                self._expect(promise)
                self._learn(ticket, moved)
            case Step.LEFT:
                self.index.withdraw(promise)
            case Step.OVER:
                self._drop(key)

    def leave(self, line: Line) -> None:
        """A worker is gone, and with it all that it had under way."""
        self._fleets.pop(line, None)
        self._asking = {key for key in self._asking if key[0] != id(line)}
        for key in [key for key in self._tickets if key[0] == id(line)]:
            self._drop(key)
        if self._fleets:
            self._renew_fleet()

    def _expect(self, promise: str) -> None:
        if self.index.computed(promise):
            loop = asyncio.get_running_loop()
            loop.call_later(EVENTS_WITHIN_S, run, "exact warmth", self.index.expect_no_more, promise)

    # -- answering -------------------------------------------------------------------------------------------------

    async def _answer(self, line: Line, asked: SightAsked) -> None:
        try:
            ends = await self.tokenizing.ends(self._asked(asked))
        except UnseenError as why:
            self._asking.discard((id(line), asked.ticket))
            self.unseen[str(why)] = self.unseen.get(str(why), 0) + 1
            line.send(SightGiven(asked.ticket, why=str(why)))
            return
        key = id(line), asked.ticket
        if key not in self._asking:
            return
        self._asking.remove(key)
        ticket = Ticket(self._base(asked.model), ends)
        self._keep(key, ticket)
        ticket.found = await self._look(ticket)
        feeds = self.followers.feeds
        seen = tuple(
            (engine, tokens, self._seconds(held))
            for engine, held in ticket.found.items()
            if (feed := feeds.get(engine)) is not None
            and feed.trust.is_exact
            and (tokens := feed.trust.held(held.tokens))
        )
        if self.followers.has_turned:
            # Whoever is told what engines hold must know by then whose word it is: who is not named holds nothing.
            self._tell()
        line.send(SightGiven(asked.ticket, ends.tokens, seen))

    async def _look(self, ticket: Ticket) -> Mapping[str, Held]:
        """What engines hold. Of siblings that come at once, each must find what the one before it will leave behind."""
        links = ticket.ends.of_blocks(LINK_TOKENS, LINK_TOKENS)
        elder = self._newest.get(links[0]) if links else None
        if links:
            self._newest[links[0]] = ticket
            ticket.is_settled.clear()
        self.followers.catch_up()
        found = self.index.look(ticket.ends)
        if elder is None or elder.is_settled.is_set():
            return found
        shared = alike(links, elder.ends.of_blocks(LINK_TOKENS, LINK_TOKENS)) * LINK_TOKENS
        if shared <= max((held.tokens for held in found.values()), default=0):
            return found
        with suppress(TimeoutError):
            async with asyncio.timeout(SIBLING_WAIT_S):
                await elder.is_settled.wait()
        return self.index.look(ticket.ends)

    def _settle(self, ticket: Ticket) -> None:
        """Who waits for it need not wait any longer."""
        ticket.is_settled.set()
        links = ticket.ends.of_blocks(LINK_TOKENS, LINK_TOKENS)
        if links and self._newest.get(links[0]) is ticket:
            del self._newest[links[0]]

    def _asked(self, asked: SightAsked) -> Asked:
        pod = next((pod for pod in self._pods.values() if asked.model in pod.models), None)
        if pod is None:
            raise UnseenError("no_pod")
        try:
            api = Api(asked.api)
        except ValueError:
            raise UnseenError("api") from None
        return Asked(api, asked.model, self._base(asked.model), asked.model in pod.adapters, pod.url, asked.body)

    def _base(self, model: str) -> str:
        """The model whose tokenizer an adapter uses."""
        for pod in self._pods.values():
            if model in pod.adapters and pod.bases:
                return pod.bases[0]
        return model

    def _keep(self, key: tuple[int, int], ticket: Ticket) -> None:
        self._tickets[key] = ticket
        while len(self._tickets) > MOST_TICKETS:
            self._drop(next(iter(self._tickets)))

    def _drop(self, key: tuple[int, int]) -> None:
        self._settle(self._tickets.pop(key))
        self.index.withdraw(f"{key[0]}/{key[1]}")

    def _seconds(self, held: Held) -> float:
        # A medium that is not known here is taken for the slowest.
        return sum(
            tokens * self._load_s.get(medium, self._load_s["STORAGE"]) for medium, tokens in held.slow_tokens.items()
        )

    # -- learning --------------------------------------------------------------------------------------------------

    def _learn(self, ticket: Ticket, moved: SightMoved) -> None:
        """The closed loop: the engine's own count against what was foretold."""
        self.tokenizing.check(ticket.model, ticket.ends.tokens, moved.prompt_tokens)
        feed = self.followers.feeds.get(ticket.engine)
        real, held = moved.cached_tokens, ticket.found.get(ticket.engine, NOTHING_HELD)
        if feed is None or real is None or ticket.ends.tokens != moved.prompt_tokens:
            return
        followed = self.index.engines.get(ticket.engine)
        blocks = [group.block_tokens for group in followed.groups.values()] if followed else []
        was_exact = feed.trust.is_exact
        if feed.trust.observe(feed.trust.held(held.tokens), real, min(blocks, default=1)):
            self.followers.has_turned = True
            word = "KV events do not tell what is reused" if was_exact else "KV events can be believed again"
            self._say("warning" if was_exact else "info", word, engine=ticket.engine, error=round(feed.trust.error, 3))
        if not feed.trust.is_exact and feed.trust.doubt is not Doubt.UNHEARD:
            self.index.correct(ticket.engine, ticket.ends, real)

    # -- telling -------------------------------------------------------------------------------------------------------

    def _renew_fleet(self) -> None:
        pods: dict[str, PodTold] = {}
        for told in self._fleets.values():
            for pod in told.pods:
                known = pods.get(pod.url)
                if known is None or pod.life > known.life:
                    pods[pod.url] = pod
        self._pods = pods
        self.followers.take_fleet(pods)

    @restarted("exact warmth")
    async def _keep_telling(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(TELL_EVERY_S)

    def _tell(self) -> None:
        doubts = {engine: str(feed.trust.doubt or "") for engine, feed in self.followers.feeds.items()}
        self.followers.has_turned = False
        if self._told is None or self._told.doubts != doubts:
            self._told = EnginesFollowed(doubts)
            for line in self._fleets:
                line.send(self._told)


def _entries(settings: Settings) -> dict[str, TokenizerEntry]:
    return {entry.name: entry.tokenizer for entry in settings.models if entry.tokenizer is not None}


def _load_seconds(words: LoadTimes) -> dict[str, float]:
    """Medium to seconds per token."""
    return {"CPU": words.cpu * US, "STORAGE": words.storage * US}
