"""The pipeline's transport to simulated engines in a virtual loop. No HTTP, no real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import structs

from gateway.limits.accounts import RequestMeter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus, PrefillRequest, PrefillResult
from routing.blocks import Prompt
from routing.decision.placement import Placement
from routing.pairing.prefill_side import PrefillPlacement
from routing.rejection import RequestRejected
from routing.request import Usage
from simulator.sequence import Milestone, MilestoneKind, Sequence
from simulator.virtual_pod import LOST, Listener, VirtualPod


class VirtualCarrier:
    """Carries one request of a trace to whichever engine or pair of engines it is placed on."""

    __slots__ = (
        "_full_sequence",
        "_held_by",
        "_is_patient",
        "_on_first_token",
        "_pods",
        "_resumes",
        "_sequence",
        "rejection",
    )

    def __init__(
        self,
        pods: Mapping[str, VirtualPod],
        sequence: Sequence,
        on_first_token: Callable[[str], None] | None = None,
        *,
        is_patient: bool = False,
        resumes: bool = False,
    ) -> None:
        """`is_patient`: a pair's prefill leg is awaited in `carry`, however long it takes and the KV after it.

        `resumes`: a stream whose engine dies goes on elsewhere, with what it has as part of its prompt.
        """
        self._is_patient = is_patient
        self._resumes = resumes
        self._full_sequence = sequence
        self._held_by: VirtualPod | None = None
        self._pods = pods
        self._sequence = sequence
        self._on_first_token = on_first_token
        self.rejection: RequestRejected | None = None

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        """Submit it, tell the placement its first token, and wait for its end."""
        sequence, source = self._sequence, None
        if placement.prefill is not None and self._is_patient:
            prefilled = await self._prefill(placement.prefill, first_byte_by_s)
            if not prefilled.is_done:
                return AttemptResult(prefilled.end, detail=prefilled.detail)
            placement.prefill.prefill_done(prefilled.usage, asyncio.get_running_loop().time())
        if (held_by := self._held_by) is not None:
            self._held_by = None
            sequence = replace(sequence, remote_tokens=sequence.prompt_tokens)
            source = held_by, _attempt_id(sequence)

        def started(milestone: Milestone) -> None:
            placement.first_token(milestone.at)
            if self._on_first_token:
                self._on_first_token(milestone.sequence_id)

        pod = self._pods[placement.engine.pod]
        end = await _run(pod, sequence, first_byte_by_s, started, source)
        if isinstance(end, AttemptResult) or end.reason == LOST:
            if source is not None:
                source[0].let_go(source[1])
            return self._failed(placement, end)
        return self._answered(placement, sequence, end)

    def _answered(self, placement: Placement, sequence: Sequence, end: Milestone) -> AttemptResult:
        cached = end.cached_tokens
        if placement.prefill is not None and placement.prefill.cached_tokens is not None:
            # As NIXL's decoding pod tells it: what the prefilling one had.
            cached = placement.prefill.cached_tokens
        usage, sequence_done = Usage(sequence.prompt_tokens, end.output_tokens, cached), self._full_sequence
        parameters = (
            Usage(sequence_done.prompt_tokens, sequence_done.output_tokens, 0)
            if sequence.prompt_tokens != sequence_done.prompt_tokens
            else None
        )
        return AttemptResult(
            AttemptStatus.OK, 200, started=True, usage=usage, finish_reason=end.reason, client_usage=parameters
        )

    def _failed(self, placement: Placement, end: AttemptResult | Milestone) -> AttemptResult:
        """What is left of a stream that has lost its engine is another request, where it may be resumed."""
        if isinstance(end, AttemptResult):
            return end if placement.first_token_s is None else _started(end)
        request, emitted, detail = placement.request, end.output_tokens, "the engine died"
        if emitted == 0:
            return AttemptResult(AttemptStatus.CONNECTION_RESET, detail=detail)
        sequence = self._sequence
        if not self._resumes or emitted >= sequence.output_tokens:
            return AttemptResult(AttemptStatus.CONNECTION_RESET, started=True, detail=detail)
        self._sequence = replace(
            sequence,
            prompt_tokens=sequence.prompt_tokens + emitted,
            output_tokens=sequence.output_tokens - emitted,
        )
        prompt = request.prompt
        longer = structs.replace(request, prompt=Prompt(prompt.blocks, prompt.ends, prompt.size + emitted))
        return AttemptResult(AttemptStatus.CONNECTION_RESET, started=True, detail=detail, continuation=longer)

    async def prefill(self, placement: Placement, order: PrefillRequest, by_s: float) -> PrefillResult | None:
        """Have the prompt computed and held, as NIXL does it."""
        if self._is_patient or placement.prefill is None:
            return None
        return await self._prefill(placement.prefill, by_s)

    async def _prefill(self, side: PrefillPlacement, by_s: float) -> PrefillResult:
        sequence = replace(self._sequence, sequence_id=_attempt_id(self._sequence), output_tokens=1, is_held=True)
        pod = self._pods[side.engine.pod]
        end = await _run(pod, sequence, by_s, _ignore)
        if isinstance(end, AttemptResult):
            return PrefillResult(end.end, end.status, detail=end.detail)
        if end.reason == LOST:
            return PrefillResult(AttemptStatus.CONNECTION_RESET, detail="the engine died")
        self._held_by = pod
        usage = Usage(sequence.prompt_tokens, 1, end.cached_tokens)
        return PrefillResult(AttemptStatus.OK, 200, _decode_parameters(side.engine.pod, sequence), usage)

    def open_meter(self, meter: RequestMeter) -> None:
        """Do nothing: it has no limits."""

    def reject(self, rejection: RequestRejected) -> None:
        """Reject the request."""
        self.rejection = rejection


async def _run(
    pod: VirtualPod,
    sequence: Sequence,
    first_byte_by_s: float,
    started: Listener,
    source: tuple[VirtualPod, str] | None = None,
) -> Milestone | AttemptResult:
    """Its end on an engine; how it failed, where it has none of its own."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Milestone | None] = loop.create_future()
    patience = loop.call_at(first_byte_by_s, _give_up, ended)

    def listen(milestone: Milestone) -> None:
        if milestone.kind is MilestoneKind.FIRST_TOKEN:
            patience.cancel()
            started(milestone)
        elif not ended.done():
            ended.set_result(milestone)

    try:
        pod.submit(sequence, listen, source)
        milestone = await ended
    except ValueError as error:
        return AttemptResult(AttemptStatus.OK, 400, started=True, detail=str(error))
    except ConnectionError as error:
        return AttemptResult(AttemptStatus.UNREACHABLE, detail=str(error))
    finally:
        patience.cancel()
        pod.abort(sequence.sequence_id)
    if milestone is None:
        return AttemptResult(AttemptStatus.TIMEOUT, detail="no first token in time")
    return milestone


def _started(result: AttemptResult) -> AttemptResult:
    """The same end of an answer of which the client has seen some."""
    return AttemptResult(result.end, result.status, started=True, detail=result.detail)


def _attempt_id(sequence: Sequence) -> str:
    return f"{sequence.sequence_id}-prefill"


def _decode_parameters(pod: str, sequence: Sequence) -> dict[str, object]:
    """Return what the decode request would carry: it is checked on the way, and not read."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1]],
        "remote_engine_id": pod,
        "remote_request_id": sequence.sequence_id,
        "remote_host": "virtual",
        "remote_port": 1,
        "tp_size": 1,
    }


def _ignore(_: Milestone) -> None:
    """Ignore the one token of a prefill request."""


def _give_up(ended: asyncio.Future[Milestone | None]) -> None:
    if not ended.done():
        ended.set_result(None)
