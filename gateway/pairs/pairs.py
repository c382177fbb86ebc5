"""Prefill/decode pairs: one engine computes a prompt's KV, another one fetches it and answers.

Carries both halves, in turn or at once as their connector wants it. What passes between them is checked before it is
passed on. A half that hangs, fails or is far too slow is given up before the client has a byte, and the result says
why, so that the pipeline can serve the request another way. Nothing of either half is left running when this returns.
Knows no protocol: front ends bring a `Carrier`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
from msgspec.structs import replace

from gateway.config.models import ModelEntry
from gateway.pipeline.attempt import Leg, LegEnd, Order, Prefilled
from gateway.pipeline.transport import Carrier
from gateway.runtime.event_log import LogFunction
from routing.connectors.registry import CONNECTORS
from routing.connectors.shape import Connector, Flow, Meeting, Params, Side, UnfitError
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.eligible import Fallback
from routing.facts import NO_FACTS, PodFacts
from routing.fleet import Fleet
from routing.pairing.prefill_side import Handover, PrefillSide
from routing.pods import Engine

SLOW = 4.0
"""A prefill is given up when it takes so many times what was predicted, and `SLOW_LEAST_S` beside."""

SLOW_LEAST_S = 10.0

TOKEN_S = 0.25
"""Of a response that is not streamed the first token is not seen: each token is allowed this, beside the bound of the
transfer.
"""

UNLIMITED_TOKENS = 4096
"""Tokens that such a response may have where its client has set no limit."""

T = TypeVar("T")


class EngineIds(Protocol):
    """Looks up the ids of prefill engines whose connector needs them."""

    async def engine_id(self, address: str, rank: int) -> str:
        """Return the id of one data-parallel rank; empty where it is unknown."""
        ...

    def forget(self, address: str) -> None:
        """Drop what is known of an address: its pod may have been restarted."""
        ...


class Pairs:
    """Carries pairs. One per gateway process; holds no request's state."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Callable[[], float],
        engine_ids: EngineIds | None = None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._engine_ids = engine_ids

    async def carry(self, placement: Placement, side: PrefillSide, carrier: Carrier, by_s: float) -> Leg:
        """Carry both halves of a pair; like `Carrier.carry`, with `Leg.fallback` where it failed as a pair."""
        connector = side.transfer.connector
        meeting = await self._meeting(placement, side, connector)
        try:
            order = _order(connector, meeting)
            if connector.terms.flow is Flow.CONCURRENT:
                side.handover = _handover(meeting, connector.hand(meeting, None))
                return await self._at_once(placement, side, carrier, order, by_s)
        except UnfitError as unfit:
            self._forget(side)
            return _unfit(side, unfit)
        return await self._in_turn(placement, side, carrier, meeting, order, by_s)

    async def _in_turn(
        self, placement: Placement, side: PrefillSide, carrier: Carrier, meeting: Meeting, order: Order, by_s: float
    ) -> Leg:
        connector = side.transfer.connector
        told = await carrier.prefill(placement, order, self._slow_s(side, by_s))
        if told is None:  # The next hop does it.
            return await carrier.carry(placement, by_s)
        if not told.is_done:
            return _failed(side, told)
        side.done(told.usage, self._clock())
        meeting = replace(meeting, cached_tokens=side.cached_tokens)
        try:
            side.handover = _handover(meeting, connector.hand(meeting, told.params))
        except UnfitError as unfit:
            return _unfit(side, unfit)
        return await self._decode(placement, side, carrier, by_s)

    async def _at_once(
        self, placement: Placement, side: PrefillSide, carrier: Carrier, order: Order, by_s: float
    ) -> Leg:
        prefilling = _begin(carrier.prefill(placement, order, self._slow_s(side, by_s)))
        decoding = _begin(carrier.carry(placement, by_s))
        try:
            await asyncio.wait({prefilling, decoding}, return_when=asyncio.FIRST_COMPLETED)
            if decoding.done():  # Rejected, lost, or answered before the prefill was reported done.
                return _with_kv(decoding.result(), side)
            told = prefilling.result()
            if told is None:
                return await decoding
            if not told.is_done:
                self._forget(side)
                return _failed(side, told)
            side.done(told.usage, self._clock())
            return await self._in_time(placement, side, decoding)
        finally:
            await _end(prefilling)
            await _end(decoding)

    async def _decode(self, placement: Placement, side: PrefillSide, carrier: Carrier, by_s: float) -> Leg:
        decoding = _begin(carrier.carry(placement, by_s))
        try:
            return await self._in_time(placement, side, decoding)
        finally:
            await _end(decoding)

    async def _in_time(self, placement: Placement, side: PrefillSide, decoding: asyncio.Task[Leg]) -> Leg:
        """Return the result of the decode half, or a stall where the KV that it waits for does not arrive in time."""
        await asyncio.wait({decoding}, timeout=_stalled_s(placement, side))
        if decoding.done() or placement.first_token_s is not None:
            return _with_kv(await decoding, side)
        now_s = self._clock()
        side.stalled(now_s)
        self._forget(side)
        words = f"KV from {side.engine.name} did not come in time."
        return Leg(LegEnd.STALLED, detail=words, fallback=Fallback.TRANSFER_STALLED)

    async def _meeting(self, placement: Placement, side: PrefillSide, connector: Connector) -> Meeting:
        prefill, decode = self._side(side.engine), self._side(placement.engine)
        address = prefill.facts.bootstrap
        if connector.terms.asks_engine_id and self._engine_ids is not None and address is not None:
            prefill = replace(prefill, engine_id=await self._engine_ids.engine_id(address, prefill.rank))
        key = secrets.token_hex(16)
        return Meeting(f"{placement.request.id}-{key[:8]}", key, prefill, decode)

    def _side(self, engine: Engine) -> Side:
        return Side(self._facts(engine), engine.rank or 0)

    def _facts(self, engine: Engine) -> PodFacts:
        pod = self._fleet.pod(engine.pod)
        return pod.facts if pod is not None else NO_FACTS

    def _forget(self, side: PrefillSide) -> None:
        address = self._facts(side.engine).bootstrap
        if self._engine_ids is not None and address is not None:
            self._engine_ids.forget(address)

    def _slow_s(self, side: PrefillSide, by_s: float) -> float:
        return min(by_s, self._clock() + SLOW * side.predicted.ttft_s + SLOW_LEAST_S)


def _order(connector: Connector, meeting: Meeting) -> Order:
    terms = connector.terms
    return Order(meeting.request_id, _encoded(connector.ask(meeting)), terms.ends_by_length)


def _handover(meeting: Meeting, params: Params | None) -> Handover:
    return Handover(meeting.request_id, _encoded(params))


def _encoded(params: Params | None) -> bytes:
    return b"" if params is None else msgspec.json.encode(params)


def _stalled_s(placement: Placement, side: PrefillSide) -> float:
    """Return how long the first token may take once the prefill is done."""
    request, transfer = placement.request, side.transfer
    tokens = 0 if request.stream else request.max_tokens or UNLIMITED_TOKENS
    return transfer.bound_s + SLOW * transfer.step_s + TOKEN_S * tokens


def _failed(side: PrefillSide, told: Prefilled) -> Leg:
    """Return a failed prefill as a result. A 4xx may be the request's fault: the next pod decides."""
    end = told.end if told.end is not LegEnd.ANSWERED else LegEnd.BUSY
    fallback = Fallback.PREFILL_SLOW if end is LegEnd.TIMEOUT else Fallback.PREFILL_FAILED
    return Leg(end, told.status, detail=told.detail, fallback=fallback, blames=side.engine.pod)


def _unfit(side: PrefillSide, unfit: UnfitError) -> Leg:
    words = f"{side.engine.pod}: {unfit}"
    return Leg(LegEnd.BUSY, detail=words, fallback=Fallback.UNFIT_PARAMS, blames=side.engine.pod)


def _with_kv(leg: Leg, side: PrefillSide) -> Leg:
    """Return a decode result as the pair's: what it reports as cached was cached by the prefill engine, and a pod that
    responds with an error may only have failed to fetch the KV.
    """
    warm = side.cached_tokens
    if leg.usage is not None:
        leg = replace(leg, usage=replace(leg.usage, cached_tokens=warm))
    if leg.told is not None:
        held = None if warm is None else min(warm, leg.told.prompt_tokens)
        leg = replace(leg, told=replace(leg.told, cached_tokens=held))
    if leg.begun or leg.end is LegEnd.ANSWERED:
        return leg
    is_broken = leg.end is LegEnd.BROKEN
    return replace(leg, fallback=Fallback.TRANSFER_FAILED if is_broken else Fallback.DECODE_FAILED)


def _begin(leg: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(leg)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a half that still runs, and retrieve its exception."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


# -- ids of prefill engines --------------------------------------------------------------------------------------------

BELIEVED_S = 30.0
"""How long an answer is cached."""

MOST_KNOWN = 4096

LARGEST_ANSWER = 1 << 20

ASK_S = 2.0


class _EngineEntry(msgspec.Struct):
    engine_id: str


_DECODER = msgspec.json.Decoder(dict[str, _EngineEntry])


class Bootstraps:
    """Looks up engine ids at bootstrap servers of prefill pods, and caches them for a while. One per gateway.

    `GET http://HOST:PORT/query` returns `{"<data-parallel rank>": {"engine_id": ...}}` (Mooncake). A pod that restarts
    has another id, so nothing is cached for long, and failures not at all. Concurrent look-ups share one query.
    """

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self._known: dict[str, tuple[float, Mapping[str, str]]] = {}
        self._asking: dict[str, asyncio.Task[Mapping[str, str]]] = {}

    async def engine_id(self, address: str, rank: int) -> str:
        """Return the id of an engine by the `host:port` of its pod's bootstrap server; empty where it is unknown."""
        known = self._known.get(address)
        if known is None or self._clock() - known[0] > BELIEVED_S:
            return (await self._asked(address)).get(str(rank), "")
        return known[1].get(str(rank), "")

    def forget(self, address: str) -> None:
        """Drop what is known of an address: its pod may have been restarted."""
        self._known.pop(address, None)

    async def _asked(self, address: str) -> Mapping[str, str]:
        task = self._asking.get(address)
        if task is None:
            task = self._asking[address] = asyncio.get_running_loop().create_task(self._ask(address))
            task.add_done_callback(lambda _: self._asking.pop(address, None))
        # A cancelled request must not cancel the query of the others.
        return await asyncio.shield(task)

    async def _ask(self, address: str) -> Mapping[str, str]:
        try:
            async with (
                asyncio.timeout(ASK_S),
                self._session.get(f"http://{address}/query", allow_redirects=False) as answer,
            ):
                body = await answer.content.read(LARGEST_ANSWER)
                told = {rank: each.engine_id for rank, each in _DECODER.decode(body).items()} if body else {}
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            return {}
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        if told:
            self._known[address] = self._clock(), told
        return told


# -- what a gateway has of pairs ---------------------------------------------------------------------------------------

GROUP = "hearth.connectors"
"""Entry points of connectors that other packages bring."""


def known_connectors(say: LogFunction) -> tuple[Connector, ...]:
    """Return our connectors, then those of installed packages: entry points that name a `Connector` or its class."""
    others = []
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            others.append(loaded() if isinstance(loaded, type) else loaded)
        except Exception as error:  # noqa: BLE001 - a plugin must not prevent the start
            say("error", "a connector could not be loaded", connector=entry.name, error=repr(error))
    return (*CONNECTORS, *others)


def make_pairs(
    router: Router,
    session: aiohttp.ClientSession,
    models: Mapping[str, ModelEntry],
    *,
    clock: Callable[[], float],
    say: LogFunction,
) -> Pairs:
    """Return the pairs of a gateway; sets the connectors and the KV size per token of its router."""
    router.pairing.connectors = known_connectors(say)
    know_sizes(router, models)
    return Pairs(router.fleet, clock=clock, engine_ids=Bootstraps(session, clock))


def know_sizes(router: Router, models: Mapping[str, ModelEntry]) -> None:
    """Set the KV bytes per token of the models whose configuration has them."""
    told = {name: entry.kv_bytes_per_token for name, entry in models.items()}
    router.pairing.kv_bytes = {name: float(size) for name, size in told.items() if size is not None}
