"""A simulated engine in a virtual loop, and the spine's way to it. Knows no HTTP and no real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.carrier import Leg, LegEnd
from gateway.quotas.tab import Tab
from routing.placement import Placement, Usage
from routing.refusal import Refused
from simulator.engine import Engine
from simulator.profile import Profile
from simulator.sequence import Milestone, MilestoneKind, Sequence, Statistics

Listener = Callable[[Milestone], None]

LOST = "lost"
"""The finish reason of a sequence whose engine died."""


class VirtualPod:
    """One engine that plays its steps as the loop's clock passes them: one timer, set to its next event."""

    def __init__(self, profile: Profile, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = Engine(profile)
        self._loop = loop
        self._listeners: dict[str, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False

    def submit(self, sequence: Sequence, listener: Listener) -> None:
        """Queue a sequence; `listener` is told its first token and its end.

        Raises ValueError where it never fits, ConnectionError while the engine is lost.
        """
        if self._is_lost:
            raise ConnectionError("the engine is lost")
        self._play()
        self.engine.submit(sequence, self._loop.time())
        self._listeners[sequence.sequence_id] = listener
        self._arm()

    def abort(self, sequence_id: str) -> None:
        """Nobody listens to this sequence any more."""
        if self._listeners.pop(sequence_id, None) is None:
            return
        self._play()
        self.engine.abort(sequence_id, self._loop.time())
        self._arm()

    def lose(self) -> None:
        """The engine dies, and all that is on it."""
        self._is_lost = True
        self._play()
        for sequence_id, listener in list(self._listeners.items()):
            self.abort(sequence_id)
            listener(Milestone(MilestoneKind.FINISHED, sequence_id, self._loop.time(), 0, 0, None, 0, LOST))

    def revive(self) -> None:
        """It is there again, with nothing in its cache."""
        self._is_lost = False
        self.engine.forget_prefixes()

    def statistics(self) -> Statistics:
        """What a scrape would show now."""
        self._play()
        return self.engine.statistics()

    def _play(self) -> None:
        for milestone in self.engine.advance(self._loop.time()):
            ended = milestone.kind is MilestoneKind.FINISHED
            listeners = self._listeners
            listener = listeners.pop(milestone.sequence_id, None) if ended else listeners.get(milestone.sequence_id)
            if listener:
                listener(milestone)

    def _ring(self) -> None:
        self._timer = None
        self._play()
        self._arm()

    def _arm(self) -> None:
        due = self.engine.next_event_at()
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._ring)


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

    def refuse(self, refusal: Refused) -> None:
        """The client is told no."""
        self.refusal = refusal


def _give_up(ended: asyncio.Future[Milestone | None]) -> None:
    if not ended.done():
        ended.set_result(None)
