"""The hub gives what one says to all others, keeps a bounded past, and says farewell for the dead."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

import pytest

from gateway.replica_sync.hub import CHUNK_BYTES, ENTRY_BYTES, UpdateHub
from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import (
    GapReport,
    Hello,
    HistoryChunk,
    HistoryRequest,
    IpcMessage,
    SnapshotRequest,
    UpdateBatch,
    decode_message,
)
from gateway.replica_sync.updates import MAX_BATCH_BYTES, MAX_UPDATES, batch_head, decode_batch, encode_batch
from routing.replica_state import (
    EndedUpdate,
    QueueUpdate,
    RejectedUpdate,
    Snapshot,
    StateUpdate,
    SupplyUpdate,
    TierWaiting,
)


class Ear(IpcConnection):
    """A line that keeps what is said to it."""

    def __init__(self) -> None:
        super().__init__(lambda _line, _message: None)
        self.reported: list[IpcMessage | None] = []

    def send_frame(self, frame: bytes) -> bool:
        self.reported.append(decode_message(frame[4:]))
        return True


def hub_of(*origins: int, **options: Any) -> tuple[UpdateHub, list[Ear]]:
    hub, ears = UpdateHub(**options), [Ear() for _ in origins]
    for ear, origin in zip(ears, origins, strict=True):
        hub.join(ear)
        hub.take(ear, Hello(origin))
    for ear in ears:
        ear.reported.clear()
    return hub, ears


async def test_a_batch_goes_to_all_others_and_to_other_hosts() -> None:
    """Not back to whom it came from; what comes from abroad goes to all and not abroad again."""
    hub, (one, two, three) = hub_of(1, 2, 3)
    abroad: list[bytes] = []
    hub.connect_bridge(abroad.append, lambda _, __: None)
    hub.complete_history()
    batch = UpdateBatch(encode_batch(1, 1, [EndedUpdate(5)]))
    hub.take(one, batch)
    assert (one.reported, two.reported, three.reported, abroad) == ([], [batch], [batch], [batch.payload])
    elsewhere = encode_batch(9, 1, [EndedUpdate(5)])
    hub.take_remote(elsewhere)
    assert one.reported == [UpdateBatch(elsewhere)]
    assert len(abroad) == 1


async def test_the_missed_is_requested_here_or_elsewhere() -> None:
    """An origin of this host is asked to state what it has open; of others, whoever is there."""
    hub, (one, two) = hub_of(1, 2)
    requested: list[tuple[int, float]] = []
    hub.connect_bridge(lambda _: None, lambda *request: requested.append(request))
    hub.take(one, GapReport(2, 3.5))
    hub.take(one, GapReport(99, 4.5))
    assert (one.reported, two.reported, requested) == ([], [SnapshotRequest(3.5)], [(99, 4.5)])


async def test_who_comes_has_the_others_state_what_is_open() -> None:
    """A worker that has just come would else know nothing of what began before."""
    hub, (one, two) = hub_of(1, 2)
    late = Ear()
    hub.join(late)
    hub.take(late, Hello(3))
    assert (one.reported, two.reported, late.reported) == ([SnapshotRequest()], [SnapshotRequest()], [])


async def test_the_dead_have_nothing_open() -> None:
    """When a worker's line ends, all hear in its name that nothing is left; a line that never spoke is no loss."""
    hub, (one, two) = hub_of(1, 2)
    abroad: list[bytes] = []
    hub.connect_bridge(abroad.append, lambda _, __: None)
    hub.complete_history()
    hub.take(one, UpdateBatch(encode_batch(1, 7, [EndedUpdate(5)])))
    hub.leave(one)
    farewell = two.reported[-1]
    assert isinstance(farewell, UpdateBatch)
    read = decode_batch(farewell.payload)
    assert (read.replica_id, read.number, read.updates) == (1, 8, [Snapshot(())])
    assert abroad[-1] == farewell.payload
    hub.leave(two)
    assert len(abroad) == 2


async def test_a_worker_that_came_back_before_its_old_line_ended_is_not_dead() -> None:
    """Its new line says who it is; the end of the old one says nothing."""
    hub, (one, two) = hub_of(1, 2)
    hub.take(one, UpdateBatch(encode_batch(1, 7, [])))
    again = Ear()
    hub.join(again)
    hub.take(again, Hello(1))
    two.reported.clear()
    hub.leave(one)
    assert two.reported == []


def sized_batch(number: int, size: int) -> bytes:
    """A batch of about so many bytes that is kept as history."""
    return encode_batch(9, number, [EndedUpdate(1), SupplyUpdate(bytes(size - 50))])


async def test_the_history_is_sent_in_pieces_and_is_bounded() -> None:
    """Asked on and on, all that is kept is told once, in order; the oldest beyond the bound is gone."""
    size = CHUNK_BYTES // 4
    hub, (one,) = hub_of(1, max_history_bytes=10 * (size + ENTRY_BYTES))
    for number in range(16):
        hub.take_remote(sized_batch(number, size))
    assert hub.history_bytes <= 10 * (size + ENTRY_BYTES)
    one.reported.clear()
    found, start = list[int](), 0
    while True:
        hub.take(one, HistoryRequest(start))
        past = one.reported.pop()
        assert isinstance(past, HistoryChunk)
        assert sum(map(len, past.payloads)) <= CHUNK_BYTES + size
        found += [batch_head(payload)[1] for payload in past.payloads]
        start = past.next_start
        if not past.has_more:
            break
    assert found == list(range(6, 16))


async def test_small_batches_are_counted_with_what_each_takes_beside_its_bytes() -> None:
    """A history of single updates takes no more memory than its bound, as `sys.getsizeof` and a pointer measure it."""
    hub, (one,) = hub_of(1, max_history_bytes=64_000)
    for number in range(4_000):
        hub.take(one, UpdateBatch(encode_batch(1, number, [EndedUpdate(number)])))
    hub.take(one, HistoryRequest(0))
    past = one.reported.pop()
    assert isinstance(past, HistoryChunk)
    assert not past.has_more
    assert sum(getsizeof(payload) + 8 for payload in past.payloads) <= hub.history_bytes <= 64_000


@pytest.mark.parametrize(
    "updates", [[], [QueueUpdate((TierWaiting("m", "gold", 1.5, 2),))], [RejectedUpdate(7, 0.5), SupplyUpdate(b"s")]]
)
async def test_what_is_outdated_at_once_is_no_history(updates: list[StateUpdate]) -> None:
    """Heartbeats and what waits now are forwarded, wherever they come from, and displace nothing that teaches."""
    hub, (one, two) = hub_of(1, 2)
    hub.take(one, UpdateBatch(encode_batch(1, 1, [EndedUpdate(5)])))
    kept = hub.history_bytes
    two.reported.clear()
    for number in range(2, 12):
        hub.take(one, UpdateBatch(encode_batch(1, number, updates)))
        hub.take_remote(encode_batch(9, number, updates))
    assert len(two.reported) == 20
    assert hub.history_bytes == kept


async def test_a_history_that_is_still_being_read_is_guaranteed() -> None:
    """As long as a bridge reads the stream's past, workers are told to ask again, and are not told it as news."""
    hub, (one,) = hub_of(1)
    hub.connect_bridge(lambda _: None, lambda *_: None)
    hub.take(one, HistoryRequest(0))
    assert one.reported.pop() == HistoryChunk(0, [], has_more=True)
    old = encode_batch(9, 1, [EndedUpdate(5)])
    hub.take_remote(old)
    assert one.reported == []
    hub.complete_history()
    hub.take(one, HistoryRequest(0))
    assert one.reported.pop() == HistoryChunk(1, [old], has_more=False)


async def test_nonsense_of_a_worker_goes_nowhere() -> None:
    """What has no head of a batch is neither kept nor passed on."""
    hub, (one, two) = hub_of(1, 2)
    hub.take(one, UpdateBatch(b"\xc1"))
    assert two.reported == []
    assert hub.history_bytes == 0


@pytest.mark.parametrize(
    "batch",
    [
        b"nonsense",
        encode_batch(9, 1, [EndedUpdate(5)])[:-1],
        encode_batch(9, 1, [EndedUpdate(5), SupplyUpdate(bytes(MAX_BATCH_BYTES))]),
        encode_batch(9, 1, [EndedUpdate(number) for number in range(MAX_UPDATES + 1)]),
    ],
)
async def test_nonsense_of_other_hosts_displaces_no_history(batch: bytes) -> None:
    """What is no batch, or too large for one, is neither kept nor passed on."""
    hub, (one,) = hub_of(1)
    assert not hub.take_remote(batch)
    assert one.reported == []
    assert hub.history_bytes == 0
