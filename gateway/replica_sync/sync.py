"""A worker's part in replica sync: sends its updates in batches and applies those of its peers.

Off the path of requests: updates are appended to a list as requests progress, and sent within milliseconds. While the
index process is away nothing is exchanged; a snapshot replaces what that loses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from gateway.replica_sync.backlog import Backlog
from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.ipc_messages import GapReport, HistoryChunk, HistoryRequest, SnapshotRequest, UpdateBatch
from gateway.replica_sync.updates import UndecodableBatchError, batch_head, decode_batch, encode_batch
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import call_guarded, report_exception, restarted
from routing.decision.router import Router, replica_position
from routing.replica_state import HistoryReplay, ReplicaState, StateUpdate, UpdatePublisher
from tenancy.admission import Admission
from tenancy.peers import Peers

SPACING_S = 0.002
"""Pause between batches. The first update after a pause is sent at once: a late peer would choose the same engine."""

HEARTBEAT_S = 1.0
"""Interval of empty batches while there are no updates and no open requests."""

BUSY_HEARTBEAT_S = 0.1
"""Interval of batches while requests are open: peers see within some tenths of a second that updates are missing."""

SNAPSHOT_S = 10.0
"""Interval of unrequested snapshots."""

MIN_SNAPSHOT_S = 0.25
"""Minimum interval of snapshots, however many are requested."""

SNAPSHOT_RATE = 2_000.0
"""Open requests that snapshots list in a second, however many are requested: their interval grows with what is open."""

TIMEOUT_S = 5.0
"""A peer without a batch for this time is gone, and so are its open requests."""

SLICE_S = 0.002
"""Time for which batches are applied at a stretch, and then at least not applied: requests must not wait behind a
backlog."""

RETRY_S = 0.2

NUMBER_GAP = 1 << 20
"""Batch numbers skipped after a reconnect: the hub has published a last batch for us under the next number."""


class ReplicaSync:
    """The replica sync of one worker."""

    def __init__(
        self,
        router: Router,
        client: IndexProcessClient,
        *,
        log_event: EventLog,
        clock: Callable[[], float],
        fleet_known: asyncio.Event,
        on_answer: Callable[[str, float], None] | None = None,
    ) -> None:
        """`fleet_known` is set once all pods were probed: before, the history would name unknown engines."""
        self.sent = 0
        """Updates sent."""
        self.unsent = 0
        """Updates dropped while not connected."""
        self.unreadable = 0
        """Batches that could not be decoded, or are for later versions."""
        self.history_updates = 0
        """Updates of the history that were applied."""
        self._publisher = UpdatePublisher(self._schedule)
        self.applier = ReplicaState(router, on_answer)
        self._router = router
        self._client = client
        self._log_event = log_event
        self._clock = clock
        self._fleet_known = fleet_known
        self._number = 0
        self._sent_s = self._snapshot_s = -SNAPSHOT_S
        self._requested_s: dict[int, float] = {}
        self._missed_s = 0.0
        """Seconds of which a peer has missed updates, to be sent again with the next snapshot."""
        self._is_snapshot_due = False
        """Whether a requested snapshot is to be sent when its interval is over."""
        self._backlog = Backlog()
        self._is_waiting = False
        """Whether the backlog is applied in a moment."""
        self._free_s = 0.0
        """No batch is applied before."""
        self._chunks: asyncio.Queue[HistoryChunk] = asyncio.Queue()
        router.subscribe(self._publisher)
        client.on(UpdateBatch, self._take)
        client.on(SnapshotRequest, self._take_snapshot_request)
        client.on(HistoryChunk, self._chunks.put_nowait)
        client.on_connected(self._greet)

    def share_admission(self, admission: Admission) -> None:
        """Exchange what is admitted, waits and is rejected from now on."""
        self.applier.admission = admission.peers = Peers(admission, self._publisher.publish)

    def publish(self, update: StateUpdate) -> None:
        """Publish an update that does not belong to a request."""
        self._publisher.publish(update)

    @property
    def replica_id(self) -> int:
        """The replica id of this worker."""
        return self._client.hello.replica_id

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    @property
    def overflowed(self) -> int:
        """Batches dropped because they arrived faster than they were applied."""
        return self._backlog.dropped

    async def run(self) -> None:
        """Apply the history in the background, and send regular batches, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._replay_history(), name="replay history")
            await self._keep_time()

    @restarted("replica sync")
    async def _keep_time(self) -> None:
        # With open requests a batch is sent at each beat that has none of the last half: beats are no exact clock.
        while True:
            await asyncio.sleep(BUSY_HEARTBEAT_S)
            self._beat()

    # -- sending -------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._sent_s + SPACING_S - loop.time()
        if wait_s > 0:
            loop.call_later(wait_s, call_guarded, "replica sync", self._send)
        else:
            loop.call_soon(call_guarded, "replica sync", self._send)

    def _send(self) -> None:
        self._sent_s = asyncio.get_running_loop().time()
        updates = self._publisher.take()
        self._number += 1
        if self._client.is_connected:
            self._client.send(UpdateBatch(encode_batch(self.replica_id, self._number, updates, self._clock())))
            self.sent += len(updates)
        else:
            self.unsent += len(updates)

    def _greet(self) -> None:
        self._number += NUMBER_GAP
        self._send_snapshot()

    def _take_snapshot_request(self, request: SnapshotRequest) -> None:
        self._missed_s = max(self._missed_s, request.missed_s)
        if self._is_snapshot_due:
            return
        interval_s = min(SNAPSHOT_S, max(MIN_SNAPSHOT_S, self._publisher.open_count / SNAPSHOT_RATE))
        wait_s = self._snapshot_s + interval_s - self._clock()
        if wait_s <= 0:
            self._send_snapshot()
            return
        self._is_snapshot_due = True
        asyncio.get_running_loop().call_later(wait_s, call_guarded, "replica sync", self._send_due_snapshot)

    def _send_due_snapshot(self) -> None:
        if self._is_snapshot_due:
            self._send_snapshot()

    def _send_snapshot(self) -> None:
        self._snapshot_s = now_s = self._clock()
        self._is_snapshot_due = False
        missed_s, self._missed_s = self._missed_s, 0.0
        self._publisher.publish_missed(missed_s, now_s)
        if self.applier.admission is not None:
            self.applier.admission.publish_waiting(now_s, is_requested=True)

    def _beat(self) -> None:
        now_s = self._clock()
        if self.applier.admission is not None:
            self.applier.admission.publish_waiting(now_s)
        if now_s - self._snapshot_s >= SNAPSHOT_S:
            self._send_snapshot()
        elif now_s - self._sent_s >= (BUSY_HEARTBEAT_S / 2 if self._publisher.open_count else HEARTBEAT_S):
            self._send()
        self._router.replica_position = replica_position(self.replica_id, self.applier.replica_ids)
        for replica_id in self.applier.remove_stale(now_s - TIMEOUT_S, now_s):
            self._requested_s.pop(replica_id, None)
            self._log_event("info", "replica_timed_out", replica=f"{replica_id:016x}")

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _take(self, batch: UpdateBatch) -> None:
        """Apply a batch, or keep it where as much time was spent on others a moment ago as there is for that."""
        if not self._is_waiting and perf_counter() >= self._free_s:
            self._spend(batch.payload)
            return
        try:
            self._backlog.put(batch_head(batch.payload)[0], batch.payload)
        except UndecodableBatchError:
            self.unreadable += 1
        self._schedule_backlog()

    def _schedule_backlog(self) -> None:
        if self._backlog and not self._is_waiting:
            self._is_waiting = True
            wait_s = max(0.0, self._free_s - perf_counter())
            asyncio.get_running_loop().call_later(wait_s, call_guarded, "replica sync", self._apply_backlog)

    def _apply_backlog(self) -> None:
        self._is_waiting = False
        until_s = perf_counter() + SLICE_S
        while self._backlog and perf_counter() < until_s:
            self._spend(self._backlog.pop())
        self._schedule_backlog()

    def _spend(self, payload: bytes) -> None:
        """Apply a batch, and leave as much time as it takes to others: at once, or after `SLICE_S` of such batches."""
        began_s = perf_counter()
        try:
            self._apply(payload)
        except Exception as error:  # noqa: BLE001 - of this batch alone: later ones are applied
            report_exception("replica sync", error)
        took_s = perf_counter() - began_s
        self._free_s = max(self._free_s, began_s - 2 * SLICE_S) + 2 * took_s

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode_batch(payload)
        except UndecodableBatchError:
            self.unreadable += 1
            return
        now_s = self._clock()
        self.applier.rejected += batch.skipped
        if batch.replica_id == self.replica_id:
            return
        is_contiguous = self.applier.apply(batch.replica_id, batch.number, batch.updates, now_s, batch.sent_s)
        if not is_contiguous and now_s - self._requested_s.get(batch.replica_id, -MIN_SNAPSHOT_S) >= MIN_SNAPSHOT_S:
            self._requested_s[batch.replica_id] = now_s
            self._client.send(GapReport(batch.replica_id, self.applier.missed_s(batch.replica_id, now_s)))

    # -- history -------------------------------------------------------------------------------------------------------

    @restarted("replica sync")
    async def _replay_history(self) -> None:
        """Request the history once, when the fleet is known, and apply it chunk by chunk."""
        await self._fleet_known.wait()
        replay, start, has_more = HistoryReplay(self._router), 0, True
        while has_more:
            if not self._client.send(HistoryRequest(start)):
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    chunk = await self._chunks.get()
            except TimeoutError:
                continue
            start, has_more = chunk.next_start, chunk.has_more
            for payload in chunk.payloads:
                self._apply_old(replay, payload)
                await asyncio.sleep(0)
            if has_more and not chunk.payloads:
                await asyncio.sleep(RETRY_S)
        replay.close()
        self.history_updates = replay.applied
        self._log_event("info", "replica_history_replayed", updates=replay.applied)

    def _apply_old(self, replay: HistoryReplay, payload: bytes) -> None:
        try:
            batch = decode_batch(payload)
        except UndecodableBatchError:
            self.unreadable += 1
            return
        if batch.replica_id != self.replica_id:
            replay.apply(batch.replica_id, batch.number, batch.updates)
