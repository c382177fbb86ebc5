"""What a request of another gateway costs here: its updates decoded and applied, from placement to end.

One scene publishes what it does, in batches as workers send them: its requests are dealt out to several replicas. A
second router with the same engines receives them. Beside it stands what the request cost where it was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from bench.decide.admission import timed_decision
from bench.decide.scene import Scene
from gateway.replica_sync.updates import decode_batch, encode_batch
from routing.replica_state import (
    EndedUpdate,
    FirstTokenUpdate,
    PlacedUpdate,
    ReplicaState,
    SettledUpdate,
    StateUpdate,
    UpdatePublisher,
)

PER_BATCH = 2
"""Requests whose updates share a batch: what two milliseconds bring from a busy gateway."""

REPLICAS = (1, 15)
"""Other gateways: of more, each is learned from less."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One line of the table: medians in microseconds a request."""

    pods: int
    tokens: int
    replicas: int
    decide_us: float
    decode_us: float
    apply_us: float
    batch_bytes: float

    @property
    def remote_us(self) -> float:
        return self.decode_us + self.apply_us


def measure_remote(pods: int, tokens: int, replicas: int, rounds: int) -> Remote:
    """Time the updates of other gateways at one."""
    here, there = Scene(pods, tokens, interval_s=1 / pods), Scene(pods, tokens, interval_s=1 / pods)
    publisher, applier = UpdatePublisher(), ReplicaState(there.router)
    here.router.subscribe(publisher)
    decides, decodes, applies, sizes = list[float](), list[float](), list[float](), list[float]()
    senders = [_Sender(number) for number in range(replicas)]
    for number in range(here.max_open + PER_BATCH * rounds):
        seconds, placement = timed_decision(here, is_new=number % 2 == 0)
        decides.append(seconds)
        here.settle_in(placement)
        for update in publisher.take():
            senders[_number_of(update) % replicas].add(update)
        for sender in senders:
            if sender.placed < PER_BATCH:
                continue
            requests, payload = sender.batch()
            begin_s = perf_counter()
            batch = decode_batch(payload)
            decoded_s = perf_counter()
            applier.apply(batch.replica_id, batch.number, batch.updates, here.now_s)
            done_s = perf_counter()
            if number >= here.max_open:
                sizes.append(len(payload) / requests)
                decodes.append((decoded_s - begin_s) / requests)
                applies.append((done_s - decoded_s) / requests)
    assert applier.rejected == 0
    times = [median(each) * 1e6 for each in (decides, decodes, applies)]
    return Remote(pods, tokens, replicas, *times, median(sizes))


class _Sender:
    """What one replica has to send."""

    def __init__(self, number: int) -> None:
        self.placed = 0
        self._id = number + 1
        self._batches = 0
        self._updates: list[StateUpdate] = []

    def add(self, update: StateUpdate) -> None:
        self._updates.append(update)
        self.placed += isinstance(update, PlacedUpdate)

    def batch(self) -> tuple[int, bytes]:
        """How many requests begin in it, and its bytes."""
        self._batches += 1
        placed, updates = self.placed, self._updates
        self.placed, self._updates = 0, []
        return placed, encode_batch(self._id, self._batches, updates)


def _number_of(update: StateUpdate) -> int:
    """Return the number of the request that an update is of."""
    if isinstance(update, PlacedUpdate):
        return update.charge.number
    assert isinstance(update, FirstTokenUpdate | SettledUpdate | EndedUpdate)
    return update.number


def remote_table(rows: Sequence[Remote]) -> str:
    """The rows as lines of text."""
    head = (
        f"{'pods':>5} {'tokens':>9} {'others':>6} | {'decide':>7} {'decode':>7} {'apply':>7} {'remote':>7} {'bytes':>7}"
    )
    lines = [
        f"{row.pods:5} {row.tokens:9,} {row.replicas:6} | {row.decide_us:7.1f} {row.decode_us:7.1f} "
        f"{row.apply_us:7.1f} {row.remote_us:7.1f} {row.batch_bytes:7.0f}"
        for row in rows
    ]
    return "\n".join([head, *lines])
