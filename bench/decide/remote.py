"""What a request of another gateway costs here: its updates decoded and applied, from placement to end.

One scene publishes what it does, in batches as a worker sends them; a second router with the same engines receives
them. Beside it stands what the request cost where it was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from bench.decide.admission import timed_decision
from bench.decide.scene import Scene
from gateway.replica_sync.updates import decode_batch, encode_batch
from routing.replica_state import ReplicaState, UpdatePublisher

PER_BATCH = 2
"""Requests whose updates share a batch: what two milliseconds bring from a busy gateway."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One line of the table: medians in microseconds a request."""

    pods: int
    tokens: int
    decide_us: float
    decode_us: float
    apply_us: float
    batch_bytes: float

    @property
    def remote_us(self) -> float:
        return self.decode_us + self.apply_us


def measure_remote(pods: int, tokens: int, rounds: int) -> Remote:
    """Time the updates of one gateway at another."""
    here, there = Scene(pods, tokens, interval_s=1 / pods), Scene(pods, tokens, interval_s=1 / pods)
    publisher, applier = UpdatePublisher(), ReplicaState(there.router)
    here.router.subscribe(publisher)
    decides, decodes, applies, sizes = list[float](), list[float](), list[float](), list[int]()
    warming = here.max_open // PER_BATCH + 1
    for number in range(1, warming + rounds + 1):
        for turn in range(PER_BATCH):
            seconds, placement = timed_decision(here, is_new=(number + turn) % 2 == 0)
            decides.append(seconds)
            here.settle_in(placement)
        payload = encode_batch(1, number, publisher.take())
        begin_s = perf_counter()
        batch = decode_batch(payload)
        decoded_s = perf_counter()
        applier.apply(batch.replica_id, batch.number, batch.updates, here.now_s)
        done_s = perf_counter()
        if number > warming:
            sizes.append(len(payload))
            decodes.append((decoded_s - begin_s) / PER_BATCH)
            applies.append((done_s - decoded_s) / PER_BATCH)
    assert applier.rejected == 0
    return Remote(
        pods,
        tokens,
        median(decides) * 1e6,
        median(decodes) * 1e6,
        median(applies) * 1e6,
        median(sizes) / PER_BATCH,
    )


def remote_table(rows: Sequence[Remote]) -> str:
    """The rows as lines of text."""
    head = f"{'pods':>5} {'tokens':>9} | {'decide':>7} {'decode':>7} {'apply':>7} {'remote':>7} {'bytes':>7}"
    lines = [
        f"{row.pods:5} {row.tokens:9,} | {row.decide_us:7.1f} {row.decode_us:7.1f} {row.apply_us:7.1f} "
        f"{row.remote_us:7.1f} {row.batch_bytes:7.0f}"
        for row in rows
    ]
    return "\n".join([head, *lines])
