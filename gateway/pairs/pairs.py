"""Prefill/decode pairs: one engine computes a prompt's KV, another one fetches it and answers.

Sends both halves, in turn or at once as their connector wants it. What passes between them is checked before it is
passed on. A half that hangs, fails or is far too slow is given up before the client has a byte, and the result says
why, so that the pipeline can serve the request another way. Nothing of either half is left running when this returns.
Knows no protocol: front ends bring an `AttemptTransport`.
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
from gateway.pairs.decode_room import DecodeRoom
from gateway.pipeline.attempt import AttemptResult, AttemptStatus, PrefillRequest, PrefillResult
from gateway.pipeline.transport import AttemptTransport
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import call_guarded
from routing.connectors.registry import CONNECTORS
from routing.connectors.shape import (
    Connector,
    InvalidTransferParams,
    KvTransferSession,
    Params,
    TransferMode,
    TransferPeer,
)
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.eligible import PairingFallback
from routing.facts import NO_FACTS, PodFacts
from routing.fleet import Fleet
from routing.ledger import Ledger
from routing.pairing.prefill_side import DecodeHandover, PrefillPlacement
from routing.pods import Engine

SLOW = 4.0
"""A prefill is given up when it takes so many times what was predicted, and `SLOW_MIN_S` beside."""

SLOW_MIN_S = 10.0

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


class PairTransport:
    """Carries pairs. One per gateway process; holds no request's state."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        engine_ids: EngineIds | None = None,
    ) -> None:
        self.room = DecodeRoom(ledger, clock)
        self._fleet = fleet
        self._clock = clock
        self._engine_ids = engine_ids

    async def run_attempt(
        self, placement: Placement, side: PrefillPlacement, transport: AttemptTransport, by_s: float
    ) -> AttemptResult:
        """Send both halves of a pair; like `AttemptTransport.run_attempt`, with `fallback` if it failed as a pair."""
        engine = placement.engine
        if engine.kv_tokens:
            await self.room.enter(placement.charge, float(engine.kv_tokens), by_s)
        try:
            return await self._run_pair(placement, side, transport, by_s)
        finally:
            # Its charge ends in this step of the loop, after this.
            asyncio.get_running_loop().call_soon(call_guarded, "pairs", self.room.ended, engine.slot)

    async def _run_pair(
        self, placement: Placement, side: PrefillPlacement, transport: AttemptTransport, by_s: float
    ) -> AttemptResult:
        connector = side.transfer.connector
        meeting = await self._meeting(placement, side, connector)
        try:
            order = _order(connector, meeting)
            if connector.terms.transfer_mode is TransferMode.CONCURRENT:
                side.handover = _handover(meeting, connector.hand(meeting, None))
                return await self._at_once(placement, side, transport, order, by_s)
        except InvalidTransferParams as unfit:
            self._forget(side)
            return _unfit(side, unfit)
        return await self._in_turn(placement, side, transport, meeting, order, by_s)

    async def _in_turn(
        self,
        placement: Placement,
        side: PrefillPlacement,
        transport: AttemptTransport,
        meeting: KvTransferSession,
        order: PrefillRequest,
        by_s: float,
    ) -> AttemptResult:
        connector = side.transfer.connector
        prefill_result = await transport.prefill(placement, order, self._slow_s(side, by_s))
        if prefill_result is None:  # The next hop does it.
            return await transport.run_attempt(placement, by_s)
        if not prefill_result.is_done:
            return _failed(side, prefill_result)
        side.prefill_done(prefill_result.usage, self._clock())
        meeting = replace(meeting, cached_tokens=side.cached_tokens)
        try:
            side.handover = _handover(meeting, connector.hand(meeting, prefill_result.params))
        except InvalidTransferParams as unfit:
            return _unfit(side, unfit)
        return await self._decode(placement, side, transport, by_s)

    async def _at_once(
        self,
        placement: Placement,
        side: PrefillPlacement,
        transport: AttemptTransport,
        order: PrefillRequest,
        by_s: float,
    ) -> AttemptResult:
        prefilling = _begin(transport.prefill(placement, order, self._slow_s(side, by_s)))
        decoding = _begin(transport.run_attempt(placement, by_s))
        try:
            await asyncio.wait({prefilling, decoding}, return_when=asyncio.FIRST_COMPLETED)
            if decoding.done():  # Rejected, lost, or answered before the prefill was reported done.
                return _with_kv(decoding.result(), side)
            prefill_result = prefilling.result()
            if prefill_result is None:
                return await decoding
            if not prefill_result.is_done:
                self._forget(side)
                return _failed(side, prefill_result)
            side.prefill_done(prefill_result.usage, self._clock())
            return await self._in_time(placement, side, decoding)
        finally:
            await _end(prefilling)
            await _end(decoding)

    async def _decode(
        self, placement: Placement, side: PrefillPlacement, transport: AttemptTransport, by_s: float
    ) -> AttemptResult:
        decoding = _begin(transport.run_attempt(placement, by_s))
        try:
            return await self._in_time(placement, side, decoding)
        finally:
            await _end(decoding)

    async def _in_time(
        self, placement: Placement, side: PrefillPlacement, decoding: asyncio.Task[AttemptResult]
    ) -> AttemptResult:
        """Return the result of the decode half, or a stall where the KV that it waits for does not arrive in time."""
        await asyncio.wait({decoding}, timeout=_stalled_s(placement, side))
        if decoding.done() or placement.first_token_s is not None:
            return _with_kv(await decoding, side)
        now_s = self._clock()
        side.transfer_stalled(now_s)
        self._forget(side)
        words = f"KV from {side.engine.name} did not come in time."
        return AttemptResult(AttemptStatus.KV_TRANSFER_TIMEOUT, detail=words, fallback=PairingFallback.TRANSFER_STALLED)

    async def _meeting(self, placement: Placement, side: PrefillPlacement, connector: Connector) -> KvTransferSession:
        prefill, decode = self._side(side.engine), self._side(placement.engine)
        address = prefill.facts.bootstrap
        if connector.terms.needs_engine_id and self._engine_ids is not None and address is not None:
            prefill = replace(prefill, engine_id=await self._engine_ids.engine_id(address, prefill.rank))
        key = secrets.token_hex(16)
        return KvTransferSession(f"{placement.request.id}-{key[:8]}", key, prefill, decode)

    def _side(self, engine: Engine) -> TransferPeer:
        return TransferPeer(self._facts(engine), engine.rank or 0)

    def _facts(self, engine: Engine) -> PodFacts:
        pod = self._fleet.pod(engine.pod)
        return pod.facts if pod is not None else NO_FACTS

    def _forget(self, side: PrefillPlacement) -> None:
        address = self._facts(side.engine).bootstrap
        if self._engine_ids is not None and address is not None:
            self._engine_ids.forget(address)

    def _slow_s(self, side: PrefillPlacement, by_s: float) -> float:
        return min(by_s, self._clock() + SLOW * side.predicted.ttft_s + SLOW_MIN_S)


def _order(connector: Connector, meeting: KvTransferSession) -> PrefillRequest:
    terms = connector.terms
    return PrefillRequest(meeting.request_id, _encoded(connector.ask(meeting)), terms.ends_by_length)


def _handover(meeting: KvTransferSession, params: Params | None) -> DecodeHandover:
    return DecodeHandover(meeting.request_id, _encoded(params))


def _encoded(params: Params | None) -> bytes:
    return b"" if params is None else msgspec.json.encode(params)


def _stalled_s(placement: Placement, side: PrefillPlacement) -> float:
    """Return how long the first token may take once the prefill is done."""
    request, transfer = placement.request, side.transfer
    tokens = 0 if request.stream else request.max_tokens or UNLIMITED_TOKENS
    return transfer.timeout_s + SLOW * transfer.step_s + TOKEN_S * tokens


def _failed(side: PrefillPlacement, prefill_result: PrefillResult) -> AttemptResult:
    """Return a failed prefill as a result. A 4xx may be the request's fault: the next pod decides."""
    end = prefill_result.end if prefill_result.end is not AttemptStatus.OK else AttemptStatus.UPSTREAM_BUSY
    fallback = PairingFallback.PREFILL_SLOW if end is AttemptStatus.TIMEOUT else PairingFallback.PREFILL_FAILED
    return AttemptResult(
        end, prefill_result.status, detail=prefill_result.detail, fallback=fallback, blames=side.engine.pod
    )


def _unfit(side: PrefillPlacement, unfit: InvalidTransferParams) -> AttemptResult:
    words = f"{side.engine.pod}: {unfit}"
    return AttemptResult(
        AttemptStatus.UPSTREAM_BUSY, detail=words, fallback=PairingFallback.UNFIT_PARAMS, blames=side.engine.pod
    )


def _with_kv(result: AttemptResult, side: PrefillPlacement) -> AttemptResult:
    """Return a decode result as the pair's: what it reports as cached was cached by the prefill engine, and a pod that
    responds with an error may only have failed to fetch the KV.
    """
    warm = side.cached_tokens
    if result.usage is not None:
        result = replace(result, usage=replace(result.usage, cached_tokens=warm))
    if result.client_usage is not None:
        held = None if warm is None else min(warm, result.client_usage.prompt_tokens)
        result = replace(result, client_usage=replace(result.client_usage, cached_tokens=held))
    if result.started or result.end is AttemptStatus.OK:
        return result
    is_broken = result.end is AttemptStatus.UPSTREAM_5XX
    return replace(result, fallback=PairingFallback.TRANSFER_FAILED if is_broken else PairingFallback.DECODE_FAILED)


def _begin(result: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(result)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a half that still runs, and retrieve its exception."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


# -- ids of prefill engines --------------------------------------------------------------------------------------------

TTL_S = 30.0
"""How long an answer is cached."""

MAX_KNOWN = 4096

MAX_RESPONSE_BYTES = 1 << 20

ASK_S = 2.0


class _EngineEntry(msgspec.Struct):
    engine_id: str


_DECODER = msgspec.json.Decoder(dict[str, _EngineEntry])


class BootstrapServers:
    """Looks up engine ids at bootstrap servers of prefill pods, and caches them for a while. One per gateway.

    `GET http://HOST:PORT/query` returns `{"<data-parallel rank>": {"engine_id": ...}}` (Mooncake). A pod that restarts
    has another id, so nothing is cached for long, and failures not at all. Concurrent look-ups share one query.
    """

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self._known: dict[str, tuple[float, Mapping[str, str]]] = {}
        self._queries: dict[str, asyncio.Task[Mapping[str, str]]] = {}

    async def engine_id(self, address: str, rank: int) -> str:
        """Return the id of an engine by the `host:port` of its pod's bootstrap server; empty where it is unknown."""
        known = self._known.get(address)
        if known is None or self._clock() - known[0] > TTL_S:
            return (await self._query_bootstrap(address)).get(str(rank), "")
        return known[1].get(str(rank), "")

    def forget(self, address: str) -> None:
        """Drop what is known of an address: its pod may have been restarted."""
        self._known.pop(address, None)

    async def _query_bootstrap(self, address: str) -> Mapping[str, str]:
        task = self._queries.get(address)
        if task is None:
            task = self._queries[address] = asyncio.get_running_loop().create_task(self._ask(address))
            task.add_done_callback(lambda _: self._queries.pop(address, None))
        # A cancelled request must not cancel the query of the others.
        return await asyncio.shield(task)

    async def _ask(self, address: str) -> Mapping[str, str]:
        try:
            async with (
                asyncio.timeout(ASK_S),
                self._session.get(f"http://{address}/query", allow_redirects=False) as answer,
            ):
                body = await answer.content.read(MAX_RESPONSE_BYTES)
                prefill_result = {rank: each.engine_id for rank, each in _DECODER.decode(body).items()} if body else {}
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            return {}
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if prefill_result:
            self._known[address] = self._clock(), prefill_result
        return prefill_result


# -- what a gateway has of pairs ---------------------------------------------------------------------------------------

GROUP = "hearth.connectors"
"""Entry points of connectors that other packages bring."""


def known_connectors(log_event: LogFunction) -> tuple[Connector, ...]:
    """Return our connectors, then those of installed packages: entry points that name a `Connector` or its class."""
    others = []
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            others.append(loaded() if isinstance(loaded, type) else loaded)
        except Exception as error:  # noqa: BLE001 - a plugin must not prevent the start
            log_event("error", "connector_load_failed", connector=entry.name, error=repr(error))
    return (*CONNECTORS, *others)


def make_pairs(
    router: Router,
    session: aiohttp.ClientSession,
    models: Mapping[str, ModelEntry],
    *,
    clock: Callable[[], float],
    log_event: LogFunction,
) -> PairTransport:
    """Return the pairs of a gateway; sets the connectors and the KV size per token of its router."""
    router.pairing.connectors = known_connectors(log_event)
    know_sizes(router, models)
    return PairTransport(router.fleet, router.ledger, clock=clock, engine_ids=BootstrapServers(session, clock))


def know_sizes(router: Router, models: Mapping[str, ModelEntry]) -> None:
    """Set the KV bytes per token of the models whose configuration has them."""
    prefill_result = {name: entry.kv_bytes_per_token for name, entry in models.items()}
    router.pairing.kv_bytes = {name: float(size) for name, size in prefill_result.items() if size is not None}
