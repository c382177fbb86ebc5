"""Replication between gateways: the updates, their publisher, and their application to the local state.

Updates are values without text: engines and models by name, prompts by block hashes, sessions and responses by hashed
ids. They may be lost, late or duplicated, and engines may be unknown here: no update raises, and after a snapshot or a
`forget` the ledger holds exactly what that replica has open. How updates travel is not known here; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import Any, Protocol

from msgspec import Struct

from routing.affinity import hashed_id
from routing.blocks import BLOCK_BYTES, PackedPrompt, Prompt, pack_blocks, pack_prompt
from routing.ledger import Charge, ExternalLoad, StreamObjective
from routing.observers import Settlement
from routing.pods import Engine
from routing.prefix_index import CacheInsertion
from routing.request import Request, Usage
from routing.state import RoutingState


class OpenRequest(Struct, frozen=True, gc=False):
    """One request that is on an engine now: what it was charged there."""

    number: int
    """Unique per router."""
    engine: str
    prefill_tokens: float
    prefill_s: float
    kv_tokens: float
    sequences: int
    in_prefill: bool = True
    queues: bool = True
    """Whether its prefill is done there."""
    objective: StreamObjective | None = None
    """The objective of its stream; None without one, or where its replica does not send it."""


class PlacedUpdate(Struct, frozen=True, gc=False):
    """A request was put on an engine."""

    charge: OpenRequest
    model: str
    prompt: Prompt | PackedPrompt
    """Packed where it has been received: it is unpacked where a prompt that shares its blocks is looked up."""
    session: int | None = None
    is_resent: bool = False
    """Whether the request has left the engine, which holds its prompt: of use only where its placement was missed."""


class FirstTokenUpdate(Struct, frozen=True, gc=False):
    """Its prefill is done; what that teaches of the engine's pace."""

    number: int
    work_tokens: float
    took_s: float


class SettledUpdate(Struct, frozen=True, gc=False):
    """The engine has answered in full; what that teaches of its cache and its steps."""

    number: int
    prompt_tokens: int = 0
    """As the engine counts them; 0 where it has not reported them."""
    cached_tokens: int | None = None
    completion_tokens: int = 0
    grown_blocks: tuple[int, ...] = ()
    """What the prompt with its answer behind it has beyond the blocks of the prompt, where that is known."""
    grown_size: int = 0
    response: int | None = None
    running: float = 0.0
    """How many were decoded beside it, on average."""
    decode_s: float | None = None


class EndedUpdate(Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The request has left the engine, however it ended. Sent as it is: tag and form are those of its encoding."""

    number: int


class Snapshot(Struct, frozen=True, gc=False):
    """All that its router has open; any other open request attributed to it is stale."""

    open: tuple[OpenRequest, ...]


class TenantWaiting(Struct, frozen=True, gc=False):
    """What of one tenant waits in one tier at one replica."""

    tenant: str | None
    work_s: float
    """Prefill."""
    service: float
    """Weighted tokens over the tenant's weight: by so much its counter will rise."""


class TierWaiting(Struct, frozen=True, gc=False):
    """What one tier asks for at one replica, and what of it waits there."""

    queue: str
    tier: str
    engines: float
    """Engines that its arrivals keep in prefill, on average."""
    waiting: int = 0
    tenants: tuple[TenantWaiting, ...] = ()


class QueueUpdate(Struct, frozen=True, gc=False):
    """What waits at a replica now, and what its tiers ask for. Replaces its last update of this kind."""

    tiers: tuple[TierWaiting, ...]


class RejectedUpdate(Struct, frozen=True, gc=False):
    """A request was rejected that may return to any replica: its objective runs since it first arrived."""

    fingerprint: int
    age_s: float


class SupplyUpdate(Struct, frozen=True, gc=False):
    """What a replica knows of the need for engines, or has decided; encoded by `gateway/scaling/figures.py`."""

    payload: bytes


StateUpdate = (
    PlacedUpdate
    | FirstTokenUpdate
    | SettledUpdate
    | EndedUpdate
    | Snapshot
    | QueueUpdate
    | RejectedUpdate
    | SupplyUpdate
)


class PeerAdmission(Protocol):
    """Takes what peers admit, hold back and reject: admission counts it as its own."""

    def placed(self, charge: Charge, now_s: float) -> None:
        """A peer has charged a request to an engine."""
        ...

    def settled(self, charge: Charge, model: str, update: SettledUpdate, now_s: float) -> None:
        """An engine has answered a peer's request in full."""
        ...

    def ended(self, charge: Charge, now_s: float) -> None:
        """A peer's request has left its engine. May be called again."""
        ...

    def waits(self, replica_id: int, update: QueueUpdate, now_s: float) -> None:
        """What waits at a peer now."""
        ...

    def rejected(self, update: RejectedUpdate, now_s: float) -> None:
        """A peer has rejected a request."""
        ...

    def gone(self, replica_id: int, now_s: float) -> None:
        """A peer is gone, and what waited there with it."""
        ...

    def miss(self, replica_ids: Collection[int], since_s: float, now_s: float) -> None:
        """These peers are missing: they may be placing requests that are not known here since `since_s`."""
        ...

    def received(self, silent_from_s: float, on_silence: Callable[[float], None]) -> None:
        """A peer has sent a batch. Call `on_silence` with the time, from `silent_from_s` on, unless this is called
        again before.
        """
        ...

    def publish_waiting(self, now_s: float, *, is_requested: bool = False) -> None:
        """Publish what waits here, where peers do not know it; now in any case if that is requested."""
        ...


RESEND_S = 60.0
"""How long a placement is kept, to be sent again where it was missed."""

MAX_RESEND_BLOCKS = 1 << 16
"""Blocks of the prompts that are kept for that: some thousand prompts."""

RESEND_SLACK_S = 1.0
"""Placements of so long before the last update that a peer has received are sent again too: they may have been late."""

RESEND_PAUSE_S, RESEND_PAUSE_FACTOR = 5.0, 3.0
"""After a placement was sent again it is not sent again for the first time, and each time so many times as long: the
resends of a placement are few, however often peers ask for it. What they ask for meanwhile is sent when it may be."""

RESENT_AT_ONCE = 64
"""Placements in one batch that are sent again: peers apply a batch in one go."""


class PublishedPlacement(Struct, gc=False):
    """One placement, as long as it is open or may be sent again."""

    charge: Charge
    engine: str
    model: str
    prompt: Prompt
    """With the answer behind it, once that is known."""
    session: int | None
    is_computed: bool = False
    """Whether the engine has computed the prompt."""
    is_kept: bool = True
    """Whether it may be sent again still, and its blocks are counted."""
    resend_from_s: float = -inf
    """It is not sent again before."""
    pause_s: float = RESEND_PAUSE_S
    """Then not for so long."""


class UpdatePublisher:
    """Publishes what this router does. Updates are kept in order until `take`; `wake` is called when there are some."""

    __slots__ = ("_open", "_owed_from_s", "_queued", "_recent", "_recent_blocks", "_resent", "_wake")

    name = "replica sync"

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._queued: list[StateUpdate] = []
        self._open: dict[int, PublishedPlacement] = {}
        self._recent: deque[PublishedPlacement] = deque()
        """Those of the last `RESEND_S`, oldest first."""
        self._recent_blocks = 0
        self._resent: deque[PublishedPlacement] = deque()
        """What is sent again, in the next batches."""
        self._owed_from_s = inf
        """Placements from then on have been asked for, and are not sent again yet; infinity if there are none."""

    def __repr__(self) -> str:
        return f"<UpdatePublisher {len(self._open)} open, {len(self._queued)} to send>"

    @property
    def open_count(self) -> int:
        """Requests that a snapshot would list."""
        return len(self._open)

    def take(self) -> list[StateUpdate]:
        """All updates since the last call, and some of what is to be sent again."""
        updates, self._queued = self._queued, []
        for _ in range(min(len(self._resent), RESENT_AT_ONCE)):
            updates += self._again(self._resent.popleft())
        if self._resent:
            self._wake()
        return updates

    def publish(self, update: StateUpdate) -> None:
        """Publish an update that does not belong to a placement."""
        self._queue(update)

    def placed(self, request: Request, engine: Engine, charge: Charge) -> None:
        """Publish a charge."""
        session = hashed_id(request.session) if request.session else None
        placement = PublishedPlacement(charge, engine.name, request.model, request.prompt, session)
        self._open[charge.number] = placement
        self._keep(placement)
        self._queue(PlacedUpdate(_shown(charge, engine.name), request.model, request.prompt, session))

    def first_token(self, request: Request, charge: Charge, work_tokens: float, took_s: float) -> None:
        """Publish that its prefill is done."""
        if (placement := self._open.get(charge.number)) is not None:
            placement.is_computed = True
        self._queue(FirstTokenUpdate(charge.number, work_tokens, took_s))

    def settled(self, request: Request, charge: Charge, settlement: Settlement) -> None:
        """Publish what the engine reports of a complete response; nothing of a charge that has ended."""
        placement = self._open.get(charge.number)
        if placement is None:
            return
        usage, grown = settlement.usage, settlement.grown
        placement.is_computed = True
        if grown is not None:
            self._recent_blocks += len(grown.blocks) - len(placement.prompt.blocks) if placement.is_kept else 0
            placement.prompt = grown
        self._queue(
            SettledUpdate(
                charge.number,
                usage.prompt_tokens if usage and settlement.counts_prompt else 0,
                usage.cached_tokens if usage else None,
                usage.completion_tokens if usage else 0,
                grown.blocks[len(request.prompt.blocks) :] if grown else (),
                grown.size if grown else 0,
                hashed_id(settlement.response_id) if settlement.response_id else None,
                settlement.running,
                settlement.decode_s if usage else None,
            )
        )

    def ended(self, request: Request, charge: Charge) -> None:
        """Publish that it was released. Safe to call again."""
        if self._open.pop(charge.number, None) is not None:
            self._queue(EndedUpdate(charge.number))

    def publish_snapshot(self) -> None:
        """Publish a snapshot of all open requests."""
        self._queue(Snapshot(tuple([_shown(each.charge, each.engine) for each in self._open.values()])))

    def publish_missed(self, missed_s: float, now_s: float) -> None:
        """Publish a snapshot, and again what was placed since `missed_s` seconds before now, as far as it is kept: in
        the next batches, oldest first. Peers that have received it ignore it. What was sent again a moment ago follows
        with a later call, whatever its `missed_s`.
        """
        self.publish_snapshot()
        since_s = min(self._owed_from_s, now_s - missed_s - RESEND_SLACK_S if missed_s > 0 else inf)
        self._owed_from_s = inf
        if since_s == inf:
            return
        for each in self._recent:
            if each.charge.charged_s < since_s:
                continue
            if each.resend_from_s <= now_s:
                each.resend_from_s, each.pause_s = now_s + each.pause_s, each.pause_s * RESEND_PAUSE_FACTOR
                self._resent.append(each)
            else:
                self._owed_from_s = min(self._owed_from_s, each.charge.charged_s)

    def _keep(self, placement: PublishedPlacement) -> None:
        """Keep a placement, and no longer those that are too old or too many."""
        recent, oldest_s = self._recent, placement.charge.charged_s - RESEND_S
        recent.append(placement)
        self._recent_blocks += len(placement.prompt.blocks)
        while recent and (recent[0].charge.charged_s < oldest_s or self._recent_blocks > MAX_RESEND_BLOCKS):
            dropped = recent.popleft()
            dropped.is_kept = False
            self._recent_blocks -= len(dropped.prompt.blocks)

    def _again(self, placement: PublishedPlacement) -> Sequence[StateUpdate]:
        """Return what is sent again of a placement. One that has ended is charged next to nothing, and ends at once:
        earlier versions take it for a new one.
        """
        charge = placement.charge
        shown, is_open = _shown(charge, placement.engine), charge.number in self._open
        if not is_open:
            shown = OpenRequest(charge.number, placement.engine, 0.0, 0.0, 0.0, 1, in_prefill=False, queues=False)
        placed = PlacedUpdate(shown, placement.model, placement.prompt, placement.session, is_resent=not is_open)
        if is_open:
            return (placed,)
        return (placed, SettledUpdate(charge.number), EndedUpdate(charge.number)) if placement.is_computed else ()

    def _queue(self, update: StateUpdate) -> None:
        self._queued.append(update)
        if len(self._queued) == 1:
            self._wake()


def _shown(charge: Charge, engine: str) -> OpenRequest:
    return OpenRequest(
        charge.number,
        engine,
        charge.prefill_tokens,
        charge.prefill_s,
        charge.kv_tokens,
        charge.sequences,
        charge.in_prefill,
        charge.queues,
        charge.objective,
    )


MAX_REPLICAS = 4096
"""More gateway processes than any deployment runs; a writer to Redis could otherwise invent them without end."""

MAX_SILENCE_S = 0.4
"""A replica with open requests sends at least every tenth of a second: after this time updates of it are missing."""

MAX_SILENCE_OLD_S = 1.5
"""The same of a replica that does not send what waits: earlier versions send every second."""

MIN_SILENCE_S, SILENCE_OF_ONE_S = 0.06, 0.42
"""Of many replicas with open requests some batch arrives within the first time. For fewer the second is added over
their number: after a longer silence of all, up to `MAX_SILENCE_S`, the link is broken."""

CATCH_UP_S = 2.0
"""So long after a missing replica was heard again its updates may be old: they were held back on their way. What was
cached and how long it took when they were sent says nothing of now. Where batches tell when they were sent, until one
comes that was not held back."""

HELD_BACK_S = MAX_SILENCE_S
"""A batch that took so much longer than the fastest ones before was held back."""

MAX_CLOCK_DRIFT = 0.01
"""Of a second a second: how much faster a clock may run than another. What takes longer for good is normal some time
later."""

MAX_OPEN_REQUESTS, MAX_OPEN_OF_ALL = 1 << 17, 1 << 19
"""Per origin, far beyond what one process can serve; and of all together, of which each has an even part."""

MAX_TOKENS, MAX_SECONDS, MAX_SEQUENCES, MAX_INTEGER = 1e9, 1e5, 1 << 14, 1e14
"""No request is larger: an update beyond these is invalid."""


MAX_UNLEARNED = 4
"""What prompts displace is learned from one in so many at least: it costs little, and few samples scatter."""


class RemoteRequest(Charge, gc=False):
    """One request that another replica has open, as it is charged here."""

    engine: str = ""
    model: str = ""
    trace: CacheInsertion | None = None
    """None where only its charge is known."""
    is_prefill_done: bool = False
    is_sample: bool = False
    """Whether its times and its usage are learned from."""


class RemoteReplica:
    """State of one other replica."""

    __slots__ = (
        "current_from_s",
        "has_gap",
        "last_placed",
        "last_update_s",
        "min_delay_s",
        "missed_after",
        "missed_before",
        "missed_since_s",
        "number",
        "number_before",
        "open",
        "replica_id",
        "sends_queues",
    )

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.last_placed = -1
        """The highest number of its requests."""
        self.missed_after, self.missed_before = inf, -inf
        """Between these numbers its placements were missed, and are taken where they are sent again."""
        self.missed_since_s = inf
        """When the last batch before a gap came; infinity without one, or where it is not known."""
        self.sends_queues = False
        self.open: dict[int, RemoteRequest] = {}
        self.number: int | None = None
        """Sequence number of the last batch applied; None before the first."""
        self.number_before: int | None = None
        """The same before it was removed; None where it is new."""
        self.has_gap = True
        """Whether updates were lost since its last snapshot."""
        self.last_update_s = 0.0
        self.current_from_s = -inf
        """From when on its requests are learned from; minus infinity while nothing is held back."""
        self.min_delay_s = inf
        """From sending to receiving the fastest batches, plus the difference of the clocks; infinity where unknown."""

    def missed(self, last_placed: int, since_s: float) -> None:
        """Note that updates are missing behind one that came at `since_s`, when `last_placed` was the last request."""
        self.last_placed = last_placed
        self.missed_after, self.missed_before = last_placed, inf
        self.missed_since_s = min(self.missed_since_s, since_s)

    def note_delay(self, sent_s: float, now_s: float) -> None:
        """Note whether a batch that was sent at `sent_s`, by the replica's clock, was held back. Where all batches of
        `CATCH_UP_S` seem to be, a clock was set or the way has become longer.
        """
        delay_s, min_s = now_s - sent_s, self.min_delay_s + MAX_CLOCK_DRIFT * (now_s - self.last_update_s)
        self.min_delay_s = min(delay_s, min_s)
        if delay_s <= min_s + HELD_BACK_S:
            self.current_from_s = -inf
        elif self.current_from_s == -inf or self.is_late(now_s):
            self.current_from_s = now_s + CATCH_UP_S
        elif now_s >= self.current_from_s:
            self.min_delay_s, self.current_from_s = delay_s, -inf

    @property
    def is_busy(self) -> bool:
        """Whether it sends every tenth of a second."""
        return self.sends_queues and bool(self.open)

    def is_late(self, now_s: float) -> bool:
        """Whether it may be placing requests of which no update has come."""
        silent_s = now_s - self.last_update_s
        return silent_s > (MAX_SILENCE_S if self.sends_queues else MAX_SILENCE_OLD_S) and bool(self.open)


class ReplicaState:
    """Applies the updates of all other replicas to the local state, as if their requests were ours."""

    def __init__(
        self,
        state: RoutingState,
        on_answer: Callable[[str, float], None] | None = None,
        admission: PeerAdmission | None = None,
    ) -> None:
        """`on_answer` is called with the name of an engine that has answered another replica's request, and when."""
        self.admission = admission
        self.supply_listeners: tuple[Callable[[int, bytes, float], None], ...] = ()
        """Called with the replica, payload and time of each `SupplyUpdate`; each ignores what is not for it."""
        self.applied = 0
        """Updates applied."""
        self.rejected = 0
        """Updates that could not be applied: of engines unknown here, or with impossible numbers."""
        self.gaps = 0
        """Gaps in the sequence numbers."""
        self._on_answer = on_answer
        self._answers: dict[str, None] = {}
        """Engines that have answered in the batch that is applied."""
        self._take: dict[type, Callable[[RemoteReplica, Any, float], None]] = {
            PlacedUpdate: self._apply_placed,
            FirstTokenUpdate: self._begin,
            SettledUpdate: self._settle,
            EndedUpdate: self._apply_ended,
            Snapshot: self._restate,
            QueueUpdate: self._admit,
            RejectedUpdate: self._admit,
            SupplyUpdate: self._apply_supply,
        }
        self._state = state
        self._origins: dict[int, RemoteReplica] = {}
        self._adapters: dict[str, bool] = {}
        self._adapters_version = -1
        self._charged = 0
        """Requests charged: one of as many as there are replicas is learned from, so that learning costs the same
        however many there are, and lasts as long."""
        self._removed: OrderedDict[int, tuple[int | None, int, float, float]] = OrderedDict()
        """Of origins that were removed: number of the last batch, the last request, when that batch came, and the delay
        of the fastest.
        """
        self._is_silent = False
        """Whether all replicas with open requests have been silent for too long."""
        self._missing: set[int] = set()
        """Origins that fell silent with open requests, less those that have appeared since."""

    def __repr__(self) -> str:
        held = sum(len(origin.open) for origin in self._origins.values())
        return f"<ReplicaState {len(self._origins)} others with {held} open>"

    @property
    def replica_ids(self) -> Iterable[int]:
        """Ids of the replicas that are not stale."""
        return self._origins.keys()

    @property
    def replicas(self) -> Iterable[RemoteReplica]:
        """The replicas that are not stale, with what they have open."""
        return self._origins.values()

    @property
    def replica_count(self) -> int:
        """Number of other replicas."""
        return len(self._origins)

    def remote_load(self) -> dict[int, tuple[int, float, float]]:
        """Load of other replicas: slot to (sequences, prefill tokens not yet done, KV tokens)."""
        found: dict[int, tuple[int, float, float]] = {}
        for origin in self._origins.values():
            for charge in origin.open.values():
                running, prefill_tokens, kv_tokens = found.get(charge.slot, (0, 0.0, 0.0))
                prefill_tokens += charge.prefill_tokens if charge.in_prefill else 0.0
                found[charge.slot] = running + charge.sequences, prefill_tokens, kv_tokens + charge.kv_tokens
        return found

    def apply(
        self, name: int, number: int, updates: Sequence[StateUpdate], now_s: float, sent_s: float | None = None
    ) -> bool:
        """Apply a batch of an origin, its `number`th. False where updates were lost: request a snapshot of it.

        A duplicate, or a batch that arrives behind a later one, is ignored. `sent_s`: by the origin's own clock; None
        where it is not known.
        """
        origin = self._origin(name, now_s)
        if origin is None:
            return True
        last_update_s = self._note_arrival(origin, sent_s, now_s)
        if origin.number is not None and number <= origin.number:
            return True
        before = origin.number_before if origin.number is None else origin.number
        is_behind_gap = before is not None and number > before + 1
        if is_behind_gap:
            origin.has_gap = True
            self.gaps += 1
            origin.missed(origin.last_placed, last_update_s)
        origin.number = number
        if self.admission is not None:
            self.admission.received(now_s + _link_silence_s(len(self._origins)), self._note_missing)
        if self._is_silent:
            self._note_missing(now_s)
        self.applied += len(updates)
        take = self._take
        for update in updates:
            take[type(update)](origin, update, now_s)
        if self._answers:
            self._report_answers(now_s)
        if is_behind_gap:  # What was missed is not sent again with a snapshot that was not requested for the gap.
            origin.missed_since_s = min(origin.missed_since_s, last_update_s)
            return False
        return not origin.has_gap

    def _note_arrival(self, origin: RemoteReplica, sent_s: float | None, now_s: float) -> float:
        """Note that a batch has come, and whether its origin is missing. Returns when the last one before came."""
        last_update_s, was_late = origin.last_update_s, origin.is_late(now_s)
        if sent_s is not None and origin.min_delay_s < inf:
            current_from_s = origin.current_from_s
            origin.note_delay(sent_s, now_s)
            origin.last_update_s = now_s
            if was_late or origin.current_from_s != current_from_s:
                self._note_missing(now_s)
        elif was_late:
            self._catch_up(origin, now_s, now_s - last_update_s)
        elif sent_s is not None and now_s >= origin.current_from_s:
            origin.min_delay_s, origin.current_from_s = now_s - sent_s, -inf
        origin.last_update_s = now_s
        return last_update_s

    def missed_s(self, name: int, now_s: float) -> float:
        """Return how long ago the last batch of an origin came before its updates were lost; 0 where none were."""
        origin = self._origins.get(name)
        return now_s - origin.missed_since_s if origin is not None and origin.missed_since_s < inf else 0.0

    def remove(self, name: int, now_s: float) -> None:
        """Remove an origin and all that it had open."""
        origin = self._origins.pop(name, None)
        if origin is not None:
            self._removed[name] = origin.number, origin.last_placed, origin.last_update_s, origin.min_delay_s
            if len(self._removed) > MAX_REPLICAS:
                self._removed.popitem(last=False)
        for remote in origin.open.values() if origin else ():
            self._end(remote, now_s)
        if self.admission is not None:
            self.admission.gone(name, now_s)

    def remove_stale(self, before_s: float, now_s: float) -> Sequence[int]:
        """Remove the origins whose last batch came before `before_s`; returns them."""
        silent = [name for name, origin in self._origins.items() if origin.last_update_s < before_s]
        for name in silent:
            if self._origins[name].open:  # One that has left has stated that nothing is open.
                if len(self._missing) < MAX_REPLICAS:
                    self._missing.add(name)
                self._leave_as_external(self._origins[name], now_s)
            self.remove(name, now_s)
        self._note_missing(now_s)
        return silent

    def _leave_as_external(self, origin: RemoteReplica, now_s: float) -> None:
        """Count what a missing replica had open as load of others, until the next scrape shows what is there."""
        ledger = self._state.ledger
        for charge in origin.open.values():
            slot = charge.slot
            known = ledger.external[slot]
            more = ExternalLoad(
                known.running + charge.sequences, known.waiting, known.kv_tokens + charge.kv_tokens, now_s
            )
            self._state.observe_load(slot, more)

    def _take_from_external(self, remote: RemoteRequest) -> None:
        """Count a request no longer as load of others: the last scrape saw it before its replica was back."""
        known = self._state.ledger.external[remote.slot]
        if known.running > 0:
            running = max(0.0, known.running - remote.sequences)
            kv_tokens = max(0.0, known.kv_tokens - remote.kv_tokens)
            left = ExternalLoad(running, min(known.waiting, running), kv_tokens, known.at_s)
            self._state.observe_load(remote.slot, left)

    def _assume_prefill_done(self, origin: RemoteReplica, now_s: float) -> None:
        """Let the prefill of a late replica delay others no longer: its first tokens are out, unseen, or come soon."""
        for remote in origin.open.values():
            if remote.in_prefill:
                self._start(remote, now_s)

    def _note_missing(self, now_s: float) -> None:
        """Note which replicas may be placing requests that are not known here."""
        state = self._state
        missing = {name for name, origin in self._origins.items() if origin.is_late(now_s)}
        for name in missing:
            self._assume_prefill_done(self._origins[name], now_s)
        missing.update(name for name, origin in self._origins.items() if now_s < origin.current_from_s)
        busy = [name for name, origin in self._origins.items() if origin.is_busy]
        last_batch_s = max((self._origins[name].last_update_s for name in busy), default=now_s)
        self._is_silent = now_s - last_batch_s >= _link_silence_s(len(busy))
        if self._is_silent:
            missing.update(busy)
        if missing or self._missing:
            if state.peers_missing_s is None:
                state.peers_missing_s = now_s
            elif not missing and not state.has_unexplained_load(now_s):
                self._missing.clear()  # They do not return: no engine runs what is not known here.
        missing |= self._missing
        if not missing and state.peers_missing_s is not None:
            state.peers_missing_s, state.peers_found_s = None, now_s
        if self.admission is not None:
            since_s = min(
                (self._origins[name].last_update_s for name in missing if name in self._origins), default=now_s
            )
            self.admission.miss(missing, since_s, now_s)

    def _origin(self, name: int, now_s: float) -> RemoteReplica | None:
        origin = self._origins.get(name)
        if origin is None:
            if len(self._origins) >= MAX_REPLICAS:
                self.rejected += 1
                return None
            origin = self._origins[name] = RemoteReplica(name)
            if (known := self._removed.pop(name, None)) is not None:
                origin.number_before, origin.last_placed, origin.last_update_s, origin.min_delay_s = known
            if self._missing:  # It is back, or another has taken its place.
                self._missing.discard(name if name in self._missing else next(iter(self._missing)))
                self._catch_up(origin, now_s, CATCH_UP_S)
                self._note_missing(now_s)
        return origin

    def _catch_up(self, origin: RemoteReplica, now_s: float, silent_s: float) -> None:
        """Treat the next updates of a replica that was silent as old, for as long as it was silent: it still counts as
        missing then.
        """
        origin.current_from_s = now_s + min(CATCH_UP_S, silent_s)

    def _apply_supply(self, origin: RemoteReplica, update: SupplyUpdate, now_s: float) -> None:
        for take in self.supply_listeners:
            take(origin.replica_id, update.payload, now_s)

    def _admit(self, origin: RemoteReplica, update: QueueUpdate | RejectedUpdate, now_s: float) -> None:
        admission = self.admission
        if isinstance(update, RejectedUpdate):
            is_sane = 0 <= update.age_s <= MAX_SECONDS
            if is_sane and admission is not None:
                admission.rejected(update, now_s)
        else:
            origin.sends_queues = True
            is_sane = all(map(_is_sane_waiting, update.tiers))
            if is_sane and admission is not None:
                admission.waits(origin.replica_id, update, now_s)
        self.rejected += not is_sane

    def _apply_placed(self, origin: RemoteReplica, update: PlacedUpdate, now_s: float) -> None:
        number = update.charge.number
        if update.is_resent:
            self._apply_missed(origin, update)
            return
        if number > origin.last_placed:
            origin.last_placed = number
            if origin.missed_before == inf:
                origin.missed_before = number
        remote = self._charge(origin, update.charge, now_s)
        if remote is None:
            remote = origin.open.get(number)
            if remote is None or remote.trace is not None:
                return  # Else a snapshot has brought its charge alone.
        prompt, state, slot, model = update.prompt, self._state, remote.slot, update.model
        remote.model = model
        if update.session is not None:
            state.sessions.put_hashed(update.session, slot)
        if isinstance(prompt, Prompt):
            prompt = pack_prompt(prompt)
        if _is_sane(prompt):
            learns = remote.is_sample or not self._charged % MAX_UNLEARNED
            remote.trace = state.index.insert_packed(slot, prompt, learns=learns)
        if self._is_adapter(model):
            state.adapters.put((model, slot), slot)

    def _apply_missed(self, origin: RemoteReplica, update: PlacedUpdate) -> None:
        """Enter the prompt of a request that was missed, and has ended; those that follow it have higher numbers."""
        number, prompt = update.charge.number, update.prompt
        engine = self._state.fleet.engine(update.charge.engine)
        if engine is None or not origin.missed_after < number < origin.missed_before:
            return
        origin.missed_after = number
        if update.session is not None:
            self._state.sessions.put_hashed(update.session, engine.slot)
        if isinstance(prompt, Prompt):
            prompt = pack_prompt(prompt)
        if _is_sane(prompt):
            index = self._state.index
            index.prefill_done(index.insert_packed(engine.slot, prompt, learns=False))

    def _is_adapter(self, model: str) -> bool:
        """Whether a model is an adapter, looked up once for each change of the fleet."""
        fleet = self._state.fleet
        if fleet.version != self._adapters_version:
            self._adapters, self._adapters_version = {}, fleet.version
        is_adapter = self._adapters.get(model)
        if is_adapter is None:
            is_adapter = fleet.eligible(model).is_adapter
            if fleet.knows(model):
                self._adapters[model] = is_adapter
        return is_adapter

    def _begin(self, origin: RemoteReplica, update: FirstTokenUpdate, now_s: float) -> None:
        remote = origin.open.get(update.number)
        if remote is None or remote.is_prefill_done:
            return
        self._start(remote, now_s)
        self._answers[remote.engine] = None
        if not remote.is_sample or update.work_tokens == 0:
            return  # Others stand for it, or its prefill was done elsewhere.
        if 0 < update.work_tokens <= MAX_TOKENS and 0 < update.took_s <= MAX_SECONDS:
            self._state.costs.observe_first_token(remote.slot, update.work_tokens, update.took_s)
        else:
            self.rejected += 1

    def _settle(self, origin: RemoteReplica, update: SettledUpdate, now_s: float) -> None:
        remote, state = origin.open.get(update.number), self._state
        if remote is None:
            return
        trace = remote.trace
        if not remote.is_prefill_done:
            if trace is not None:
                state.index.prefill_done(trace)
            remote.is_prefill_done = True  # As of a unary response: the ledger learns it when it ends.
        if update.response is not None:
            state.responses.put_hashed(update.response, remote.slot, _tenant_of(remote))
        if not _is_sane_settlement(update):
            self.rejected += 1
            return
        if self.admission is not None:
            self.admission.settled(remote, remote.model, update, now_s)
        prompt_tokens = update.prompt_tokens
        if prompt_tokens or update.completion_tokens:
            self._answers[remote.engine] = None
        if remote.is_sample and update.decode_s is not None:
            tokens = update.completion_tokens // remote.sequences - 1
            state.costs.observe_decode(remote.slot, update.running, tokens, update.decode_s)
        if trace is not None and prompt_tokens and state.fleet.knows(remote.model):
            self._learn_usage(remote, trace, update)

    def _learn_usage(self, remote: RemoteRequest, trace: CacheInsertion, update: SettledUpdate) -> None:
        usage = Usage(update.prompt_tokens, update.completion_tokens, update.cached_tokens)
        grown = _grown(trace.prompt, update) if update.grown_blocks else None
        if remote.is_sample:
            self._state.learn_usage(remote.model, trace, usage, grown, tenant=_tenant_of(remote))
        else:
            self._state.remember_usage(remote.model, trace, usage, grown)

    def _apply_ended(self, origin: RemoteReplica, update: EndedUpdate, now_s: float) -> None:
        remote = origin.open.pop(update.number, None)
        if remote is not None:
            self._end(remote, now_s)

    def _restate(self, origin: RemoteReplica, update: Snapshot, now_s: float) -> None:
        stated = {charge.number: charge for charge in update.open}
        for number in [number for number in origin.open if number not in stated]:
            self._end(origin.open.pop(number), now_s)
        for charge in update.open:
            remote = origin.open.get(charge.number) or self._charge(origin, charge, now_s)
            if remote is not None and not charge.in_prefill:
                self._start(remote, now_s)
            elif remote is not None and not remote.in_prefill:
                remote.is_prefill_done = False
                self._state.ledger.prefill_again(remote, now_s)
        origin.has_gap, origin.missed_since_s = False, inf

    def _charge(self, origin: RemoteReplica, stated: OpenRequest, now_s: float) -> RemoteRequest | None:
        """Put a charge on our own ledger, once; None where it was there already, or cannot be."""
        number, open_requests = stated.number, origin.open
        if number in open_requests:
            return None
        engine = self._state.fleet.engine(stated.engine)
        max_open = min(MAX_OPEN_REQUESTS, MAX_OPEN_OF_ALL // len(self._origins))
        if engine is None or len(open_requests) >= max_open or not _is_sane_charge(stated):
            self.rejected += 1
            return None
        is_current = now_s >= origin.current_from_s
        in_prefill = stated.in_prefill and is_current
        remote = RemoteRequest(
            engine.slot,
            0,
            stated.prefill_tokens,
            stated.prefill_s,
            stated.kv_tokens,
            stated.sequences,
            in_prefill=in_prefill,
            objective=stated.objective,
            queues=stated.queues,
            engine=stated.engine,
        )
        self._state.ledger.put(remote, now_s, is_of_peer=in_prefill)
        if not is_current:
            self._take_from_external(remote)
        self._charged += 1
        remote.is_sample = is_current and self._charged % len(self._origins) == 0
        open_requests[number] = remote
        if self.admission is not None:
            self.admission.placed(remote, now_s)
        return remote

    def _report_answers(self, now_s: float) -> None:
        """Report the engines that have answered in this batch, each once."""
        answers, self._answers = self._answers, {}
        if self._on_answer is not None:
            for engine in answers:
                self._on_answer(engine, now_s)

    def _start(self, remote: RemoteRequest, now_s: float) -> None:
        remote.is_prefill_done = True
        self._state.ledger.prefill_done(remote, now_s)
        if remote.trace is not None:
            self._state.index.prefill_done(remote.trace)

    def _end(self, remote: RemoteRequest, now_s: float) -> None:
        state = self._state
        if remote.trace is not None and not remote.is_prefill_done:
            state.index.retract(remote.trace)
        state.ledger.release(remote, now_s)
        if self.admission is not None:
            self.admission.ended(remote, now_s)
        if state.retired:
            state.recycle(remote.slot)


def _link_silence_s(busy: int) -> float:
    """Return the silence of so many replicas after which the link to all of them is taken to be broken."""
    return min(MAX_SILENCE_S, MIN_SILENCE_S + SILENCE_OF_ONE_S / max(1, busy))


def _tenant_of(remote: RemoteRequest) -> str | None:
    """Return whose request it is; None where its gateway does not say so."""
    admitted = None if remote.objective is None else remote.objective.admitted
    return None if admitted is None else admitted.tenant


def _is_sane_charge(said: OpenRequest) -> bool:
    return (
        0 <= said.prefill_tokens <= MAX_TOKENS
        and 0 <= said.prefill_s <= MAX_SECONDS
        and 0 <= said.kv_tokens <= MAX_TOKENS
        and 1 <= said.sequences <= MAX_SEQUENCES
        and (said.objective is None or _is_sane_objective(said.objective))
    )


def _is_sane_objective(said: StreamObjective) -> bool:
    admitted = said.admitted
    return (
        said.tpot_s > 0
        and 0 <= said.min_tokens <= MAX_TOKENS
        and (
            admitted is None
            or (
                0 < admitted.weight <= MAX_TOKENS
                and 0 <= admitted.own_s <= MAX_SECONDS
                and 0 <= admitted.answer_tokens <= MAX_TOKENS
            )
        )
    )


def _is_sane_waiting(said: TierWaiting) -> bool:
    return (
        0 <= said.engines <= MAX_SECONDS
        and 0 <= said.waiting <= MAX_OPEN_REQUESTS
        and all(0 <= each.work_s <= MAX_SECONDS and 0 <= each.service <= MAX_INTEGER for each in said.tenants)
    )


def _is_sane(prompt: PackedPrompt) -> bool:
    ends, count = prompt.ends, len(prompt.packed) // BLOCK_BYTES
    return 0 < count <= len(ends) and ends[count - 1] <= prompt.size <= MAX_TOKENS


def _is_sane_settlement(update: SettledUpdate) -> bool:
    cached_tokens, decode_s = update.cached_tokens, update.decode_s
    return (
        0 <= update.prompt_tokens <= MAX_TOKENS
        and 0 <= update.completion_tokens <= MAX_TOKENS
        and (cached_tokens is None or 0 <= cached_tokens <= MAX_TOKENS)
        and 0 <= update.running <= MAX_TOKENS
        and (decode_s is None or 0 <= decode_s <= MAX_SECONDS)
    )


def _grown(prompt: Prompt | PackedPrompt, update: SettledUpdate) -> PackedPrompt | None:
    packed = prompt.packed if isinstance(prompt, PackedPrompt) else pack_blocks(prompt.blocks)
    grown = PackedPrompt(packed + pack_blocks(update.grown_blocks), prompt.ends, update.grown_size)
    return grown if _is_sane(grown) else None


class HistoryReplay:
    """Applies old updates of other replicas at start: what engines hold and how fast they are.

    Nothing that was open then stays charged: live replicas publish a snapshot of what they have open.
    """

    def __init__(self, state: RoutingState) -> None:
        self._state = state.for_replay()
        self._replica_state = ReplicaState(self._state)
        self._names: set[int] = set()

    @property
    def applied(self) -> int:
        """Updates applied."""
        return self._replica_state.applied

    def apply(self, name: int, number: int, updates: Sequence[StateUpdate]) -> None:
        """Apply an old batch; those of one replica in their order."""
        self._state.ledger.resize(self._state.fleet.slot_count)
        self._names.add(name)
        self._replica_state.apply(name, number, updates, 0.0)

    def close(self) -> None:
        """End the replay: prompts that were never seen to be computed are dropped from the index."""
        for name in self._names:
            self._replica_state.remove(name, 0.0)
