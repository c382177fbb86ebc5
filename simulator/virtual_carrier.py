"""The spine's way to simulated engines in a virtual loop. Knows no HTTP and no real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.carrier import Leg, LegEnd
from gateway.quotas.tab import Tab
from routing.placement import Placement, Usage
from routing.refusal import Refused
from simulator.sequence import Milestone, MilestoneKind, Sequence
from simulator.virtual_pod import LOST, VirtualPod


class VirtualCarrier:
    """Carries one request of a trace to whichever engine it is placed on."""

    __slots__ = ("_on_first_token", "_pods", "_sequence", "refusal")

    def __init__(
        self, pods: Mapping[str, VirtualPod], sequence: Sequence, on_first_token: Callable[[str], None] | None = None
    ) -> None:
        self._pods = pods
        self._sequence = sequence
        self._on_first_token = on_first_token
        self.refusal: Refused | None = None

    async def carry(self, placement: Placement, first_byte_by_s: float) -> Leg:
        """Submit it, tell the placement its first token, and wait for its end."""
        loop = asyncio.get_running_loop()
        pod, sequence = self._pods[placement.engine.pod], self._sequence
        ended: asyncio.Future[Milestone | None] = loop.create_future()
        patience = loop.call_at(first_byte_by_s, _give_up, ended)

        def listen(milestone: Milestone) -> None:
            if milestone.kind is MilestoneKind.FIRST_TOKEN:
                patience.cancel()
                placement.first_token(milestone.at)
                if self._on_first_token:
                    self._on_first_token(milestone.sequence_id)
            elif not ended.done():
                ended.set_result(milestone)

        try:
            pod.submit(sequence, listen)
            milestone = await ended
        except ValueError as error:
            return Leg(LegEnd.ANSWERED, 400, begun=True, detail=str(error))
        except ConnectionError as error:
            return Leg(LegEnd.UNREACHABLE, detail=str(error))
        finally:
            patience.cancel()
            pod.abort(sequence.sequence_id)
        if milestone is None:
            return Leg(LegEnd.TIMEOUT, detail="no first token in time")
        if milestone.reason == LOST:
            return Leg(LegEnd.LOST, begun=placement.first_token_s is not None, detail="the engine died")
        usage = Usage(sequence.prompt_tokens, milestone.output_tokens, milestone.cached_tokens)
        return Leg(LegEnd.ANSWERED, 200, begun=True, usage=usage, finish_reason=milestone.reason)

    def open_tab(self, tab: Tab) -> None:
        """It has no limits to be told of."""

    def judged_by(self, judge: object) -> None:
        """It has no text to be judged by."""

    def refuse(self, refusal: Refused) -> None:
        """The client is told no."""
        self.refusal = refusal


def _give_up(ended: asyncio.Future[Milestone | None]) -> None:
    if not ended.done():
        ended.set_result(None)
