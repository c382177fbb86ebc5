"""The lookup service of the index process: answers how many tokens of a prompt each engine holds.

Every lookup is answered at most once; the worker has a timeout. The engine's own count of cached tokens is compared
with the prediction afterwards. Engines with unreliable events are predicted too, to find out when they are reliable
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.config.kv_events import KvLoadTimes
from gateway.config.settings import Settings
from gateway.kv_index.pod_subscriptions import PodSubscriptions
from gateway.kv_index.prompts import UntokenizableError
from gateway.kv_index.tokenizer import PodTokenizer, TokenizeJob
from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import (
    FleetUpdate,
    FollowedEngines,
    LookupProgress,
    LookupRequest,
    LookupResponse,
    LookupStep,
    PodUpdate,
)
from gateway.runtime.event_log import EventLog, engine_fields
from gateway.runtime.guard import call_guarded, restarted
from routing.precise.event_reliability import UnreliableReason
from routing.precise.precise_index import NOTHING_CACHED, CachedPrefix, PreciseIndex
from routing.precise.token_chains import LINK_TOKENS, BlockHashes, shared_links
from routing.request import Api

STATE_CHECK_S = 0.25
"""Interval of sending changes of the followed engines to the workers; a lookup sends them before its answer."""

EVENTS_WITHIN_S = 2.0
"""How late the events of an engine may be behind its first token: a thread sends them, usually within a millisecond.
Until then the computed prompt counts as cached.
"""

MAX_PENDING = 1 << 14
"""Requests in flight that were looked up; beyond it the oldest are dropped."""

SIBLING_WAIT_S = 0.01
"""How long a lookup waits for the placement of an earlier request with the same beginning."""


@dataclass(slots=True)
class PendingLookup:
    """A looked-up request, until it has ended."""

    model: str
    ends: BlockHashes
    found: Mapping[str, CachedPrefix] = field(default_factory=dict)
    engine: str = ""
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it was placed, or will not be."""


class CacheLookupService:
    """The precise prefix index of one host, and its lookups."""

    def __init__(self, settings: Settings, log_event: EventLog) -> None:
        config = settings.kv_events
        if config is None:
            raise ValueError("kv_events is not configured")
        self.index = PreciseIndex(max_blocks=config.max_blocks_per_engine)
        self.subscriptions = PodSubscriptions(config, self.index, log_event)
        self.tokenizer = PodTokenizer(log_event)
        self.failed: dict[str, int] = {}
        """Failed lookups by reason."""
        self._log_event = log_event
        self._load_s = _load_seconds(config.load_s_per_token)
        self._fleets: dict[IpcConnection, FleetUpdate] = {}
        self._pods: dict[str, PodUpdate] = {}
        self._pending: set[tuple[int, int]] = set()
        """Lookups that are not answered yet and not given up by their worker."""
        self._tickets: dict[tuple[int, int], PendingLookup] = {}
        self._newest: dict[int, PendingLookup] = {}
        """The latest looked-up request that is not placed yet, by the first link of its chain."""
        self._sent_state: FollowedEngines | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow engines and answer lookups until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.subscriptions.run(), name="follow KV events")
                group.create_task(self._send_states(), name="send followed engines")
        finally:
            for task in self._tasks:
                task.cancel()
            await self.tokenizer.close()

    # -- messages of workers ---------------------------------------------------------------------------------------

    def take_fleet(self, connection: IpcConnection, update: FleetUpdate) -> None:
        """Take the pods that a worker sees; the fleet is the union over all workers."""
        self._fleets[connection] = update
        self._renew_fleet()
        if self._sent_state is not None:
            connection.send(self._sent_state)

    def take_lookup(self, connection: IpcConnection, lookup: LookupRequest) -> None:
        """Answer the lookup of a worker."""
        self._pending.add((id(connection), lookup.ticket))
        task = asyncio.get_running_loop().create_task(self._answer(connection, lookup), name="look up a prompt")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_progress(self, connection: IpcConnection, progress: LookupProgress) -> None:
        """Take the progress of a request."""
        key = (id(connection), progress.ticket)
        ticket = self._tickets.get(key)
        if ticket is None:
            # The worker gave the lookup up before its answer.
            self._pending.discard(key)
            return
        pending = f"{key[0]}/{key[1]}"
        match progress.step:
            case LookupStep.PLACED:
                self.index.remove_pending(pending)
                ticket.engine = progress.engine
                self.index.add_pending(pending, progress.engine, ticket.ends)
                self._settle(ticket)
            case LookupStep.COMPUTED:
                self._expect(pending)
            case LookupStep.ANSWERED:
                # A unary answer comes without a first token.
                self._expect(pending)
                self._learn(ticket, progress)
            case LookupStep.LEFT:
                self.index.remove_pending(pending)
            case LookupStep.ENDED:
                self._drop(key)

    def remove_worker(self, connection: IpcConnection) -> None:
        """Drop a worker that has disconnected, and its requests."""
        self._fleets.pop(connection, None)
        self._pending = {key for key in self._pending if key[0] != id(connection)}
        for key in [key for key in self._tickets if key[0] == id(connection)]:
            self._drop(key)
        if self._fleets:
            self._renew_fleet()

    def _expect(self, pending: str) -> None:
        if self.index.prefill_done(pending):
            loop = asyncio.get_running_loop()
            loop.call_later(EVENTS_WITHIN_S, call_guarded, "precise index", self.index.expire, pending)

    # -- lookups ---------------------------------------------------------------------------------------------------

    async def _answer(self, connection: IpcConnection, lookup: LookupRequest) -> None:
        try:
            ends = await self.tokenizer.tokenize(self._job(lookup))
        except UntokenizableError as why:
            self._pending.discard((id(connection), lookup.ticket))
            self.failed[str(why)] = self.failed.get(str(why), 0) + 1
            connection.send(LookupResponse(lookup.ticket, reason=str(why)))
            return
        key = id(connection), lookup.ticket
        if key not in self._pending:
            return
        self._pending.remove(key)
        ticket = PendingLookup(self._base(lookup.model), ends)
        self._keep(key, ticket)
        ticket.found = await self._look(ticket)
        feeds = self.subscriptions.feeds
        seen = tuple(
            (engine, tokens, self._seconds(held))
            for engine, held in ticket.found.items()
            if (feed := feeds.get(engine)) is not None
            and feed.reliability.is_reliable
            and (tokens := feed.reliability.reusable(held.tokens))
        )
        if self.subscriptions.has_changed:
            # The worker must know by then which engines are reliable: those not named in the answer hold nothing.
            self._send_state()
        connection.send(LookupResponse(lookup.ticket, ends.tokens, seen))

    async def _look(self, ticket: PendingLookup) -> Mapping[str, CachedPrefix]:
        """Look up a prompt. Of requests with the same beginning, each waits for the placement of the one before it."""
        links = ticket.ends.of_blocks(LINK_TOKENS, LINK_TOKENS)
        earlier = self._newest.get(links[0]) if links else None
        if links:
            self._newest[links[0]] = ticket
            ticket.is_settled.clear()
        self.subscriptions.drain()
        found = self.index.lookup(ticket.ends)
        if earlier is None or earlier.is_settled.is_set():
            return found
        shared = shared_links(links, earlier.ends.of_blocks(LINK_TOKENS, LINK_TOKENS)) * LINK_TOKENS
        if shared <= max((held.tokens for held in found.values()), default=0):
            return found
        with suppress(TimeoutError):
            async with asyncio.timeout(SIBLING_WAIT_S):
                await earlier.is_settled.wait()
        return self.index.lookup(ticket.ends)

    def _settle(self, ticket: PendingLookup) -> None:
        """Release the lookups that wait for the placement of this one."""
        ticket.is_settled.set()
        links = ticket.ends.of_blocks(LINK_TOKENS, LINK_TOKENS)
        if links and self._newest.get(links[0]) is ticket:
            del self._newest[links[0]]

    def _job(self, lookup: LookupRequest) -> TokenizeJob:
        pod = next((pod for pod in self._pods.values() if lookup.model in pod.models), None)
        if pod is None:
            raise UntokenizableError("no_pod")
        try:
            api = Api(lookup.api)
        except ValueError:
            raise UntokenizableError("unsupported_api") from None
        return TokenizeJob(
            api, lookup.model, self._base(lookup.model), lookup.model in pod.adapters, pod.url, lookup.body
        )

    def _base(self, model: str) -> str:
        """The model whose tokenizer a model or adapter uses."""
        for pod in self._pods.values():
            if model in pod.adapters and pod.bases:
                return pod.bases[0]
        return model

    def _keep(self, key: tuple[int, int], ticket: PendingLookup) -> None:
        self._tickets[key] = ticket
        while len(self._tickets) > MAX_PENDING:
            self._drop(next(iter(self._tickets)))

    def _drop(self, key: tuple[int, int]) -> None:
        self._settle(self._tickets.pop(key))
        self.index.remove_pending(f"{key[0]}/{key[1]}")

    def _seconds(self, held: CachedPrefix) -> float:
        # Unknown media count as the slowest.
        return sum(
            tokens * self._load_s.get(medium, self._load_s["STORAGE"]) for medium, tokens in held.slow_tokens.items()
        )

    # -- feedback --------------------------------------------------------------------------------------------------

    def _learn(self, ticket: PendingLookup, progress: LookupProgress) -> None:
        """Compare the engine's count of cached tokens with the prediction, and correct the index."""
        self.tokenizer.check(ticket.model, ticket.ends.tokens, progress.prompt_tokens)
        feed = self.subscriptions.feeds.get(ticket.engine)
        actual, held = progress.cached_tokens, ticket.found.get(ticket.engine, NOTHING_CACHED)
        if feed is None or actual is None or ticket.ends.tokens != progress.prompt_tokens:
            return
        followed = self.index.engines.get(ticket.engine)
        blocks = [group.block_tokens for group in followed.groups.values()] if followed else []
        was_exact = feed.reliability.is_reliable
        if feed.reliability.observe(feed.reliability.reusable(held.tokens), actual, min(blocks, default=1)):
            self.subscriptions.has_changed = True
            level, event = ("warning", "kv_events_unreliable") if was_exact else ("info", "kv_events_reliable")
            self._log_event(level, event, **engine_fields(ticket.engine), error_ratio=round(feed.reliability.error, 3))
        if not feed.reliability.is_reliable and feed.reliability.unreliable_reason is not UnreliableReason.NO_EVENTS:
            self.index.correct(ticket.engine, ticket.ends, actual)

    # -- state sent to workers -----------------------------------------------------------------------------------------

    def _renew_fleet(self) -> None:
        pods: dict[str, PodUpdate] = {}
        for update in self._fleets.values():
            for pod in update.pods:
                known = pods.get(pod.url)
                if known is None or pod.life > known.life:
                    pods[pod.url] = pod
        self._pods = pods
        self.subscriptions.follow(pods)

    @restarted("precise index")
    async def _send_states(self) -> None:
        while True:
            self._send_state()
            await asyncio.sleep(STATE_CHECK_S)

    def _send_state(self) -> None:
        reasons = {
            engine: str(feed.reliability.unreliable_reason or "") for engine, feed in self.subscriptions.feeds.items()
        }
        self.subscriptions.has_changed = False
        if self._sent_state is None or self._sent_state.unreliable != reasons:
            self._sent_state = FollowedEngines(reasons)
            for connection in self._fleets:
                connection.send(self._sent_state)


def _load_seconds(times: KvLoadTimes) -> dict[str, float]:
    """Seconds of loading per token, by the medium that holds it."""
    return {"CPU": times.cpu, "STORAGE": times.storage}
