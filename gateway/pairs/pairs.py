"""Carries a pair: the prefill leg to one engine, the decode leg to the other, in turn or at once as connectors want it.

What passes between them is checked before it is passed on. A leg that hangs, fails or is far too slow is given up
before the client has a byte, and the end says why, so that the spine can go another way. Nothing of either leg is left
running when this returns, whatever happened. Knows no protocol: shells bring a `AttemptTransport`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.attempts.attempt import AttemptResult, AttemptStatus, AttemptTransport, PrefillRequest, PrefillResult
from routing.connectors.shape import (
    Connector,
    InvalidTransferParams,
    KvTransferSession,
    Params,
    TransferMode,
    TransferPeer,
)
from routing.decision.placement import Placement
from routing.eligible import PairingFallback
from routing.facts import NO_FACTS, PodFacts
from routing.fleet import Fleet
from routing.pairing.prefill_side import DecodeHandover, PrefillPlacement
from routing.pods import Engine

SLOW = 4.0
"""A prefill leg is given up when it takes so many times what was foretold, and `SLOW_LEAST_S` beside."""

SLOW_LEAST_S = 10.0

TOKEN_S = 0.25
"""Of an answer in one piece nobody sees the first token: each is allowed so much, beside the hand-over's bound."""

UNLIMITED_TOKENS = 4096
"""What such an answer may have where its client has set no limit."""

T = TypeVar("T")


class EngineIds(Protocol):
    """Who tells the ids of engines that have to be asked for."""

    async def engine_id(self, address: str, rank: int) -> str:
        """Empty where it cannot be had."""
        ...

    def forget(self, address: str) -> None: ...


class PairTransport:
    """One per gateway process; holds no request's state."""

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

    async def run_attempt(
        self, placement: Placement, side: PrefillPlacement, carrier: AttemptTransport, by_s: float
    ) -> AttemptResult:
        """Carry both legs of a pair; like `AttemptTransport.run_attempt`, with `AttemptResult.fallback` where it came
        to nothing.
        """
        connector = side.transfer.connector
        meeting = await self._meeting(placement, side, connector)
        try:
            order = _order(connector, meeting)
            if connector.terms.transfer_mode is TransferMode.CONCURRENT:
                side.handover = _handover(meeting, connector.hand(meeting, None))
                return await self._at_once(placement, side, carrier, order, by_s)
        except InvalidTransferParams as unfit:
            self._forget(side)
            return _unfit(side, unfit)
        return await self._in_turn(placement, side, carrier, meeting, order, by_s)

    async def _in_turn(
        self,
        placement: Placement,
        side: PrefillPlacement,
        carrier: AttemptTransport,
        meeting: KvTransferSession,
        order: PrefillRequest,
        by_s: float,
    ) -> AttemptResult:
        connector = side.transfer.connector
        told = await carrier.prefill(placement, order, self._slow_s(side, by_s))
        if told is None:  # It is seen to further on.
            return await carrier.run_attempt(placement, by_s)
        if not told.is_done:
            return _failed(side, told)
        side.prefill_done(told.usage, self._clock())
        meeting = replace(meeting, cached_tokens=side.cached_tokens)
        try:
            side.handover = _handover(meeting, connector.hand(meeting, told.params))
        except InvalidTransferParams as unfit:
            return _unfit(side, unfit)
        return await self._decode(placement, side, carrier, by_s)

    async def _at_once(
        self,
        placement: Placement,
        side: PrefillPlacement,
        carrier: AttemptTransport,
        order: PrefillRequest,
        by_s: float,
    ) -> AttemptResult:
        prefilling = _begin(carrier.prefill(placement, order, self._slow_s(side, by_s)))
        decoding = _begin(carrier.run_attempt(placement, by_s))
        try:
            await asyncio.wait({prefilling, decoding}, return_when=asyncio.FIRST_COMPLETED)
            if decoding.done():  # Refused, lost, or answered before we heard of the prefill.
                return _with_kv(decoding.result(), side)
            told = prefilling.result()
            if told is None:
                return await decoding
            if not told.is_done:
                self._forget(side)
                return _failed(side, told)
            side.prefill_done(told.usage, self._clock())
            return await self._in_time(placement, side, decoding)
        finally:
            await _end(prefilling)
            await _end(decoding)

    async def _decode(
        self, placement: Placement, side: PrefillPlacement, carrier: AttemptTransport, by_s: float
    ) -> AttemptResult:
        decoding = _begin(carrier.run_attempt(placement, by_s))
        try:
            return await self._in_time(placement, side, decoding)
        finally:
            await _end(decoding)

    async def _in_time(
        self, placement: Placement, side: PrefillPlacement, decoding: asyncio.Task[AttemptResult]
    ) -> AttemptResult:
        """The decode leg's end, or the end of our patience with the KV that it waits for."""
        await asyncio.wait({decoding}, timeout=_stalled_s(placement, side))
        if decoding.done() or placement.first_token_s is not None:
            return _with_kv(await decoding, side)
        now_s = self._clock()
        side.transfer_stalled(now_s)
        self._forget(side)
        words = f"KV from {side.engine.name} did not come in time."
        return AttemptResult(AttemptStatus.STALLED, detail=words, fallback=PairingFallback.TRANSFER_STALLED)

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
        return min(by_s, self._clock() + SLOW * side.predicted.ttft_s + SLOW_LEAST_S)


def _order(connector: Connector, meeting: KvTransferSession) -> PrefillRequest:
    terms = connector.terms
    return PrefillRequest(meeting.request_id, _encoded(connector.ask(meeting)), terms.ends_by_length)


def _handover(meeting: KvTransferSession, params: Params | None) -> DecodeHandover:
    return DecodeHandover(meeting.request_id, _encoded(params))


def _encoded(params: Params | None) -> bytes:
    return b"" if params is None else msgspec.json.encode(params)


def _stalled_s(placement: Placement, side: PrefillPlacement) -> float:
    """How long the first token may take once the prefill is done."""
    request, transfer = placement.request, side.transfer
    tokens = 0 if request.stream else request.max_tokens or UNLIMITED_TOKENS
    return transfer.timeout_s + SLOW * transfer.step_s + TOKEN_S * tokens


def _failed(side: PrefillPlacement, told: PrefillResult) -> AttemptResult:
    """What the prefill leg's end is to the spine. What its pod calls wrong with the request, another is to judge."""
    end = told.end if told.end is not AttemptStatus.ANSWERED else AttemptStatus.BUSY
    fallback = PairingFallback.PREFILL_SLOW if end is AttemptStatus.TIMEOUT else PairingFallback.PREFILL_FAILED
    return AttemptResult(end, told.status, detail=told.detail, fallback=fallback, blames=side.engine.pod)


def _unfit(side: PrefillPlacement, unfit: InvalidTransferParams) -> AttemptResult:
    words = f"{side.engine.pod}: {unfit}"
    return AttemptResult(
        AttemptStatus.BUSY, detail=words, fallback=PairingFallback.UNFIT_PARAMS, blames=side.engine.pod
    )


def _with_kv(leg: AttemptResult, side: PrefillPlacement) -> AttemptResult:
    """A decode leg's end as a pair's: what it calls cached was held by the prefill engine, and a pod that breaks may
    only have failed to fetch the KV.
    """
    warm = side.cached_tokens
    if leg.usage is not None:
        leg = replace(leg, usage=replace(leg.usage, cached_tokens=warm))
    if leg.client_usage is not None:
        held = None if warm is None else min(warm, leg.client_usage.prompt_tokens)
        leg = replace(leg, client_usage=replace(leg.client_usage, cached_tokens=held))
    if leg.begun or leg.end is AttemptStatus.ANSWERED:
        return leg
    is_broken = leg.end is AttemptStatus.BROKEN
    return replace(leg, fallback=PairingFallback.TRANSFER_FAILED if is_broken else PairingFallback.DECODE_FAILED)


def _begin(leg: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(leg)


async def _end(task: asyncio.Task[Any]) -> None:
    """Nothing of a leg goes on after this, nor is its failure left unheard."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
