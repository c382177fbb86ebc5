"""What a request of another gateway costs here: its updates decoded and applied, from placement to end.

One scene publishes what it does, in batches as workers send them: its requests are dealt out to several replicas. A
second router with the same engines receives them until its caches hold only such requests, and then it is timed. Beside
it stands what the request cost where it was decided, and what it costs the receiver to look such a prompt up: one
request in as many as there are gateways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from time import perf_counter

from bench.decide.admission import timed_decision
from bench.decide.cases import seconds_of
from bench.decide.scene import HELD_BLOCKS_PER_POD, Scene
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


FRESH_BLOCKS = 29
"""What a request adds to an engine, on average of turns and new conversations of 8,000 tokens: by this the rounds are
counted until nothing is left of what the receiver held at first."""

DISTURBED = 0.02
"""Share of the times that is left out, the longest: another program had the core."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One line of the table: means in microseconds a request, without the most disturbed."""

    pods: int
    tokens: int
    replicas: int
    decide_us: float
    decode_us: float
    apply_us: float
    look_us: float
    batch_bytes: float

    @property
    def remote_us(self) -> float:
        return self.decode_us + self.apply_us


def measure_remote(pods: int, tokens: int, replicas: int, rounds: int) -> Remote:
    """Time the updates of other gateways at one."""
    here, there = Scene(pods, tokens, interval_s=1 / pods), Scene(pods, tokens, interval_s=1 / pods)
    publisher, applier = UpdatePublisher(), ReplicaState(there.router)
    here.router.subscribe(publisher)
    decides, decodes, applies, looks, sizes = list[float](), list[float](), list[float](), list[float](), list[float]()
    senders = [_Sender(number) for number in range(replicas)]
    warm_up = here.max_open + pods * HELD_BLOCKS_PER_POD // FRESH_BLOCKS
    for number in range(warm_up + PER_BATCH * rounds):
        seconds, placement = timed_decision(here, is_new=number % 2 == 0)
        is_timed = number >= warm_up
        if is_timed:
            decides.append(seconds)
        if number % (replicas + 1) == 0:
            seconds, _ = seconds_of(partial(there.router.index.match, placement.request.prompt, (1 << pods) - 1))
            looks += [seconds] if is_timed else []
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
            if is_timed:
                sizes.append(len(payload) / requests)
                decodes.append((decoded_s - begin_s) / requests)
                applies.append((done_s - decoded_s) / requests)
    assert applier.rejected == 0
    decide_us, decode_us, apply_us, look_us = (1e6 * _mean(times) for times in (decides, decodes, applies, looks))
    return Remote(pods, tokens, replicas, decide_us, decode_us, apply_us, look_us, fmean(sizes))


def _mean(times: list[float]) -> float:
    """The mean of all but the longest."""
    return fmean(sorted(times)[: max(1, int(len(times) * (1 - DISTURBED)))])


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
        f"{'pods':>5} {'tokens':>9} {'others':>6} | {'decide':>7} {'decode':>7} {'apply':>7} {'remote':>7} {'look':>7} "
        f"{'bytes':>7}"
    )
    lines = [
        f"{row.pods:5} {row.tokens:9,} {row.replicas:6} | {row.decide_us:7.1f} {row.decode_us:7.1f} "
        f"{row.apply_us:7.1f} {row.remote_us:7.1f} {row.look_us:7.1f} {row.batch_bytes:7.0f}"
        for row in rows
    ]
    return "\n".join([head, *lines])
