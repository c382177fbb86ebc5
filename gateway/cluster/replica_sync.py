"""A worker's part in the exchange of news: says its own in batches, hears others', and keeps both in good order.

Everything here is off the path of a request: words are put on a list as requests move, and sent a moment later. When
the warmth process is away nothing is said or heard; what that loses is stated anew when it is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.cluster.host_client import WarmthClient
from gateway.cluster.ipc_messages import Batch, Missed, Past, Recall, Restate
from gateway.cluster.updates import UnreadableError, read_batch, write_batch
from gateway.observe.log import EventLog
from gateway.runtime.guard import report, restarted, run
from routing.choice import seat_among
from routing.decision.router import Router
from routing.replica_state import Bygone, Hearing, Voice

SPACING_S = 0.002
"""Between batches. The first word after a silence goes out at once: who is told late chooses the same engine."""

BEAT_S = 1.0
"""Who has nothing to say says so this often."""

STATE_S = 10.0
"""How often all that is open is stated though nobody asked."""

RESTATE_S = 0.25
"""And at most, however many ask."""

SILENT_S = 5.0
"""An origin that was not heard for so long is gone, and so is what it had open."""

SLICE_S = 0.002
"""News are heard for so long at a time: requests must not wait behind a fleet's backlog."""

MOST_UNHEARD = 20_000
"""Batches kept for hearing; beyond it the oldest goes, and is asked for as a statement."""

ASK_AGAIN_S = 0.2

JUMP = 1 << 20
"""Numbers passed over when the connection is new: the warmth process said farewell for us with the next one."""


class Sharing:
    """One per worker that has a warmth process."""

    def __init__(
        self,
        router: Router,
        client: WarmthClient,
        *,
        say: EventLog,
        clock: Callable[[], float],
        fleet_known: asyncio.Event,
        on_answer: Callable[[str, float], None] | None = None,
    ) -> None:
        """`fleet_known` is set when all pods have been looked at: before, the past would speak of engines unknown."""
        self.sent = 0
        """Words said."""
        self.unsent = 0
        """Words that could not be said."""
        self.unreadable = 0
        """Batches that were none, or for later versions."""
        self.unheard = 0
        """Batches that came faster than they could be heard."""
        self.recalled = 0
        """Words of the past."""
        self.voice = Voice(self._wake)
        self.hearing = Hearing(router, on_answer)
        self._router = router
        self._client = client
        self._say = say
        self._clock = clock
        self._fleet_known = fleet_known
        self._number = 0
        self._sent_s = self._stated_s = -STATE_S
        self._asked_s: dict[int, float] = {}
        self._unheard: deque[bytes] = deque()
        self._is_listening = False
        self._past: asyncio.Queue[Past] = asyncio.Queue()
        router.observe(self.voice)
        client.on(Batch, self._take)
        client.on(Restate, self._restate)
        client.on(Past, self._past.put_nowait)
        client.on_connected(self._greet)

    @property
    def origin(self) -> int:
        """Who we are to others."""
        return self._client.hello.origin

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    async def run(self) -> None:
        """Learn the past, then keep time until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recall(), name="recall the past")
            await self._keep_time()

    @restarted("replica sync")
    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._beat()

    # -- saying --------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._sent_s + SPACING_S - loop.time()
        if wait_s > 0:
            loop.call_later(wait_s, run, "replica sync", self._send)
        else:
            loop.call_soon(run, "replica sync", self._send)

    def _send(self) -> None:
        news = self.voice.take()
        self._sent_s = asyncio.get_running_loop().time()
        self._number += 1
        if self._client.is_connected:
            self._client.send(Batch(write_batch(self.origin, self._number, news)))
            self.sent += len(news)
        else:
            self.unsent += len(news)

    def _greet(self) -> None:
        self._number += JUMP
        self._state()

    def _restate(self, _: Restate) -> None:
        if self._clock() - self._stated_s >= RESTATE_S:
            self._state()
        else:
            asyncio.get_running_loop().call_later(RESTATE_S, run, "replica sync", self._state_unless_done)

    def _state_unless_done(self) -> None:
        if self._clock() - self._stated_s >= RESTATE_S:
            self._state()

    def _state(self) -> None:
        self._stated_s = self._clock()
        self.voice.state()

    def _beat(self) -> None:
        now_s = self._clock()
        if now_s - self._stated_s >= STATE_S:
            self._state()
        elif now_s - self._sent_s >= BEAT_S:
            self._send()
        self._router.seat = seat_among(self.origin, self.hearing.names)
        for name in self.hearing.forget_silent(now_s - SILENT_S, now_s):
            self._asked_s.pop(name, None)
            self._say("info", "a gateway is heard no more: its requests count no longer", origin=f"{name:016x}")

    # -- hearing -------------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch) -> None:
        self._unheard.append(batch.payload)
        if len(self._unheard) > MOST_UNHEARD:
            self._unheard.popleft()
            self.unheard += 1
        if not self._is_listening:
            self._listen()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SLICE_S
        while self._unheard and loop.time() < until_s:
            payload = self._unheard.popleft()
            try:
                self._hear(payload)
            except Exception as error:  # noqa: BLE001 - of this batch alone: those behind it are heard
                report("replica sync", error)
        self._is_listening = bool(self._unheard)
        if self._is_listening:
            loop.call_soon(run, "replica sync", self._listen)

    def _hear(self, payload: bytes) -> None:
        try:
            batch = read_batch(payload)
        except UnreadableError:
            self.unreadable += 1
            return
        now_s = self._clock()
        self.hearing.strange += batch.strange
        if batch.origin == self.origin:
            return
        is_whole = self.hearing.hear(batch.origin, batch.number, batch.news, now_s)
        if not is_whole and now_s - self._asked_s.get(batch.origin, -RESTATE_S) >= RESTATE_S:
            self._asked_s[batch.origin] = now_s
            self._client.send(Missed(batch.origin))

    # -- the past ------------------------------------------------------------------------------------------------------

    @restarted("replica sync")
    async def _recall(self) -> None:
        """Ask for the past once, when the fleet is known and the connection stands; hear it in slices."""
        await self._fleet_known.wait()
        bygone, start, has_more = Bygone(self._router), 0, True
        while has_more:
            if not self._client.send(Recall(start)):
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            try:
                async with asyncio.timeout(BEAT_S):
                    past = await self._past.get()
            except TimeoutError:
                continue
            start, has_more = past.following, past.has_more
            for payload in past.payloads:
                self._hear_bygone(bygone, payload)
                await asyncio.sleep(0)
            if has_more and not past.payloads:
                await asyncio.sleep(ASK_AGAIN_S)
        bygone.close()
        self.recalled = bygone.heard
        self._say("info", "warmed by the past of other gateways", words=bygone.heard)

    def _hear_bygone(self, bygone: Bygone, payload: bytes) -> None:
        try:
            batch = read_batch(payload)
        except UnreadableError:
            self.unreadable += 1
            return
        if batch.origin != self.origin:
            bygone.hear(batch.origin, batch.number, batch.news)
