"""Batches of peers that have arrived and are not applied yet: each peer's in their order, peers in turn.

A peer that sends more than is applied delays and displaces only its own batches.
"""

from __future__ import annotations

from collections import OrderedDict, deque

MAX_BATCHES, MAX_BYTES = 20_000, 32 << 20
"""Kept of all peers together; beyond it the oldest batch of the peer with most bytes is dropped, and a snapshot of that
peer is requested when its next batch is applied."""

BATCH_BYTES = 64
"""What a batch takes beside its own bytes."""


class _Waiting:
    """The batches of one peer."""

    __slots__ = ("batches", "size")

    def __init__(self) -> None:
        self.batches: deque[bytes] = deque()
        self.size = 0

    def put(self, batch: bytes) -> None:
        self.batches.append(batch)
        self.size += len(batch) + BATCH_BYTES

    def pop(self) -> bytes:
        batch = self.batches.popleft()
        self.size -= len(batch) + BATCH_BYTES
        return batch


class Backlog:
    """Bounded in batches and bytes; false where it is empty."""

    def __init__(self, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES) -> None:
        self.dropped = 0
        """Batches dropped for want of room."""
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        """By peer, the next one in turn first."""
        self._count = 0
        self._size = 0

    def __len__(self) -> int:
        return self._count

    def put(self, replica_id: int, batch: bytes) -> None:
        """Add a batch of a peer behind its others, and drop what is too much."""
        waiting = self._waiting.get(replica_id)
        if waiting is None:
            waiting = self._waiting[replica_id] = _Waiting()
        waiting.put(batch)
        self._count += 1
        self._size += len(batch) + BATCH_BYTES
        while self._count > self._max_batches or self._size > self._max_bytes:
            self._take(max(self._waiting, key=lambda each: self._waiting[each].size))
            self.dropped += 1

    def pop(self) -> bytes:
        """Remove and return the oldest batch of the peer whose turn it is. Raises StopIteration where it is empty."""
        replica_id = next(iter(self._waiting))
        self._waiting.move_to_end(replica_id)
        return self._take(replica_id)

    def _take(self, replica_id: int) -> bytes:
        waiting = self._waiting[replica_id]
        batch = waiting.pop()
        self._count -= 1
        self._size -= len(batch) + BATCH_BYTES
        if not waiting.batches:
            del self._waiting[replica_id]
        return batch
