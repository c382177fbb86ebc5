"""Forwards the update batches of each worker of a host to the others, and to other hosts by a bridge.

Keeps a bounded history of batches for workers that start later. Reads only the head of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import (
    GapReport,
    Hello,
    HistoryChunk,
    HistoryRequest,
    IpcMessage,
    SnapshotRequest,
    UpdateBatch,
    encode_frame,
)
from gateway.replica_sync.updates import UndecodableBatchError, batch_head, encode_batch, teaches
from routing.replica_state import Snapshot

MAX_HISTORY_BYTES = 64 << 20
"""Enough for what some dozen engines cache, at half a kilobyte per request."""

ENTRY_BYTES = 56
"""What each batch of the history takes beside its own bytes: Python's header, its place in the queue, rounding."""

CHUNK_BYTES = 128 << 10
"""Bytes of history per answer: a few milliseconds of work for the worker."""


class UpdateHub:
    """The connections of all workers of a host, each with the replica id of its worker."""

    def __init__(self, *, max_history_bytes: int = MAX_HISTORY_BYTES) -> None:
        self.is_history_complete = True
        """False while a bridge still reads the history of other hosts."""
        self._publish: Callable[[bytes], None] = lambda _: None
        self._request_snapshot: Callable[[int, float], None] = lambda _, __: None
        self._dropped = 0
        """Frames dropped for workers that have disconnected."""
        self._connections: dict[IpcConnection, int] = {}
        self._numbers: dict[int, int] = {}
        """The number of the last batch of each replica of this host."""
        self._history: deque[bytes] = deque()
        self._history_begins = 0
        self._history_bytes = 0
        self._max_history_bytes = max_history_bytes

    def __repr__(self) -> str:
        return f"<UpdateHub of {len(self._connections)} workers, {len(self._history)} batches of history>"

    def connect_bridge(self, publish: Callable[[bytes], None], request_snapshot: Callable[[int, float], None]) -> None:
        """Connect other hosts. `publish` takes batches of this host, `request_snapshot` the id of a replica elsewhere,
        and the seconds of which its updates were missed.

        The bridge reads the history of other hosts first, and then calls `complete_history`.
        """
        self._publish, self._request_snapshot = publish, request_snapshot
        self.is_history_complete = False

    def complete_history(self) -> None:
        """Note that the history of other hosts has been read, or could not be read in time."""
        self.is_history_complete = True

    @property
    def workers(self) -> int:
        return len(self._connections)

    @property
    def replica_ids(self) -> set[int]:
        """Replica ids of the workers of this host."""
        return set(self._connections.values())

    @property
    def history_bytes(self) -> int:
        """Memory that the history takes."""
        return self._history_bytes

    @property
    def dropped_frames(self) -> int:
        """Frames dropped so far because a worker read too slowly."""
        return self._dropped + sum(connection.dropped for connection in self._connections)

    def join(self, connection: IpcConnection) -> None:
        """Add the connection of a worker, which sends `Hello` next."""
        self._connections[connection] = 0

    def take(self, connection: IpcConnection, message: IpcMessage) -> None:
        """Take a message of a worker."""
        match message:
            case Hello(replica_id):
                self._connections[connection] = replica_id
                self._request_snapshots(connection)
            case UpdateBatch(payload):
                self._take_batch(connection, payload)
            case GapReport(replica_id, missed_s):
                self._request_snapshot_of(replica_id, missed_s)
            case HistoryRequest(start):
                connection.send(self._history_from(start))

    def take_remote(self, payload: bytes) -> bool:
        """Take a batch of another host. It is kept as history, and forwarded once the history is complete. Returns
        False where it is none: then it is dropped.
        """
        try:
            batch_head(payload)
            self._remember(payload)
        except UndecodableBatchError:
            return False
        if self.is_history_complete:
            self._spread(payload, None)
        return True

    def request_all_snapshots(self) -> None:
        """Request a snapshot of every worker: another host has just joined."""
        self._request_snapshots(None)

    def request_local_snapshot(self, replica_id: int, missed_s: float = 0.0) -> bool:
        """Request a snapshot of a replica, and what it placed in `missed_s` seconds. Returns False where it is not a
        worker of this host.
        """
        for connection, known_id in self._connections.items():
            if known_id == replica_id:
                connection.send(SnapshotRequest(missed_s))
                return True
        return False

    def leave(self, connection: IpcConnection) -> None:
        """Remove a worker that has disconnected, and publish for it that it has no open requests."""
        replica_id = self._connections.pop(connection, 0)
        self._dropped += connection.dropped
        number = self._numbers.pop(replica_id, None)
        if number is not None and replica_id not in self._connections.values():
            last_batch = encode_batch(replica_id, number + 1, [Snapshot(())])
            self._spread(last_batch, None)
            self._publish(last_batch)

    def close(self) -> None:
        """End all connections."""
        for connection in list(self._connections):
            connection.close()

    def _take_batch(self, connection: IpcConnection, payload: bytes) -> None:
        try:
            replica_id, number = batch_head(payload)
            self._remember(payload)
        except UndecodableBatchError:
            return
        self._numbers[replica_id] = number
        self._spread(payload, connection)
        self._publish(payload)

    def _spread(self, payload: bytes, sender: IpcConnection | None) -> None:
        frame = encode_frame(UpdateBatch(payload))
        for connection in self._connections:
            if connection is not sender:
                connection.send_frame(frame)

    def _request_snapshots(self, sender: IpcConnection | None) -> None:
        for connection in self._connections:
            if connection is not sender:
                connection.send(SnapshotRequest())

    def _request_snapshot_of(self, replica_id: int, missed_s: float) -> None:
        if not self.request_local_snapshot(replica_id, missed_s):
            self._request_snapshot(replica_id, missed_s)

    def _remember(self, payload: bytes) -> None:
        if not teaches(payload):  # Of each worker ten a second, busy or not.
            return
        self._history.append(payload)
        self._history_bytes += len(payload) + ENTRY_BYTES
        while self._history_bytes > self._max_history_bytes and self._history:
            self._history_bytes -= len(self._history.popleft()) + ENTRY_BYTES
            self._history_begins += 1

    def _history_from(self, start: int) -> HistoryChunk:
        first = max(0, start - self._history_begins)
        payloads: list[bytes] = []
        size = 0
        for payload in islice(self._history, first, None):
            payloads.append(payload)
            size += len(payload)
            if size >= CHUNK_BYTES:
                break
        following = self._history_begins + first + len(payloads)
        ends = self._history_begins + len(self._history)
        return HistoryChunk(following, payloads, has_more=following < ends or not self.is_history_complete)
