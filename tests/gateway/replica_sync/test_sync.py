"""Workers of a host route as one, and do without the index process where it is away."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from time import perf_counter

import pytest

from gateway.config.settings import Settings
from gateway.observe.metrics.process import ReplicaSyncCollector
from gateway.replica_sync import sync as sharing_module
from gateway.replica_sync.ipc_messages import SnapshotRequest, UpdateBatch
from gateway.replica_sync.updates import encode_batch
from routing.replica_state import EndedUpdate
from tenancy.admission import Admission
from tenancy.objective import Tier, objective_of
from tenancy.tenants import Caller, Tenant
from tests.gateway.kv_index.exchange import Worker, alike, host, until
from tests.routing.engines import TALK, ask, place, serve
from tests.routing.exchanges import loads


def has_sent(worker: Worker, words: int) -> bool:
    return worker.sharing.sent >= words


def owes_nothing(worker: Worker) -> bool:
    return worker.router.ledger.is_empty()


async def test_workers_know_what_their_siblings_do(tmp_path: Path) -> None:
    """A request that one worker places is charged by the others, is warm for them, and is given back."""
    async with host(tmp_path) as here:
        one, two, three = here.worker(), here.worker(), here.worker()
        await until(lambda: here.knows(one, two, three))
        placement = place(one.router, ask(session="talk"), now_s=one.now_s(), draw=0.9)
        await until(lambda: alike(one, two, three))
        placement.first_token(one.now_s())
        placement.release(one.now_s())
        await until(lambda: all(map(owes_nothing, here.workers)))
        again = place(three.router, ask(TALK + b"And then?", session="talk"), now_s=three.now_s())
        assert again.engine.name == placement.engine.name
        assert again.predicted.cached_tokens > 0.9 * again.predicted.prompt_tokens
        again.release(three.now_s())


async def test_who_comes_late_is_sent_the_history_when_it_knows_the_pods(tmp_path: Path) -> None:
    """A worker that starts anew is warm from the start, and not before it has seen the fleet."""
    async with host(tmp_path) as here:
        one = here.worker()
        await until(lambda: here.knows(one))
        for number in range(300):
            serve(one.router, ask(b"Talk %d. " % number * 300), now_s=one.now_s())
        held = place(one.router, ask(b"still open " * 100), now_s=one.now_s())
        await until(lambda: here.warmth.hub.history_bytes > 300 * 100)
        late = here.worker(fleet_known=False)
        await until(lambda: here.knows(late) and loads(late.router))
        assert late.sharing.history_updates == 0
        late.sharing._fleet_known.set()
        await until(lambda: late.sharing.history_updates)
        placement = place(late.router, ask(b"Talk 7. " * 300 + b"And?"), now_s=late.now_s())
        assert placement.predicted.cached_tokens > 0.8 * placement.predicted.prompt_tokens
        placement.release(late.now_s())
        await until(lambda: alike(late, one))
        held.release(one.now_s())
        await until(lambda: owes_nothing(late))


async def test_who_dies_owes_nothing(tmp_path: Path) -> None:
    """The requests of a worker that is gone were cut off: siblings let go of them at once."""
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        place(one.router, ask(), now_s=one.now_s())
        await until(lambda: loads(two.router))
        await one.die()
        await until(lambda: owes_nothing(two))


async def test_the_index_process_is_missed_and_not_waited_for(tmp_path: Path) -> None:
    """Away it is done without; back, everybody states what is open, and all agree again."""
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        before = place(one.router, ask(), now_s=one.now_s())
        await until(lambda: loads(two.router))
        await here.stop()
        await until(lambda: not one.sharing.is_connected and not two.sharing.is_connected)
        before.release(one.now_s())
        after = place(one.router, ask(b"while it was away " * 200), now_s=one.now_s())
        await until(lambda: one.sharing.unsent >= 2)
        here.start(Settings())
        await until(lambda: alike(two, one))
        after.release(one.now_s())
        await until(lambda: owes_nothing(two))
        assert [line[1] for line in one.stated.lines].count("index_process_unavailable") == 1


async def test_a_worker_that_does_not_read_is_sent_what_is_open_when_it_does(tmp_path: Path) -> None:
    """What it was too slow for is dropped, and it asks for statements."""
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        (line,) = (line for line, origin in here.warmth.hub._connections.items() if origin == two.sharing.replica_id)
        line.pause_writing()
        line._max_waiting_bytes = 2000
        held = [place(one.router, ask(b"%d " % number * 500), now_s=one.now_s()) for number in range(5)]
        for number in range(100):
            serve(one.router, ask(b"Talk %d. " % number * 100), now_s=one.now_s())
            await until(partial(has_sent, one, 3 * number))
        await until(lambda: here.warmth.hub.dropped_frames > 0)
        line.resume_writing()
        await until(lambda: alike(two, one))
        assert two.sharing.applier.gaps > 0
        assert len(held) == 5


async def test_nonsense_is_counted_and_passed_over(tmp_path: Path) -> None:
    """Whatever comes as a batch, the worker lives and hears what is said next."""
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        assert not here.warmth.hub.take_remote(b"nonsense")
        two.sharing._take(UpdateBatch(b"nonsense"))
        here.warmth.hub.take_remote(encode_batch(two.sharing.replica_id, 99_999_999, [EndedUpdate(1)]))
        one.client.send(UpdateBatch(b"\xc1"))
        place(one.router, ask(), now_s=one.now_s())
        await until(lambda: loads(two.router))
        assert two.sharing.unreadable == 1


async def test_snapshots_that_are_requested_without_end_are_few(tmp_path: Path) -> None:
    """One timer waits to send the next, however often it is asked for, and it waits longer where more is open."""
    loop = asyncio.get_running_loop()
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        held = place(one.router, ask(), now_s=one.now_s())
        await until(lambda: alike(one, two))
        one.sharing._send_snapshot()
        timers = set(loop._scheduled)  # type: ignore[attr-defined]
        for _ in range(1000):
            one.sharing._take_snapshot_request(SnapshotRequest(60.0))
        (timer,) = set(loop._scheduled) - timers  # type: ignore[attr-defined]
        assert timer.when() - loop.time() <= sharing_module.MIN_SNAPSHOT_S
        await until(lambda: timer.when() <= loop.time() and not one.sharing._is_snapshot_due)
        for number in range(int(sharing_module.SNAPSHOT_RATE)):
            one.sharing._publisher._open[-number] = one.sharing._publisher._open[held.charge.number]
        timers = set(loop._scheduled)  # type: ignore[attr-defined]
        one.sharing._take_snapshot_request(SnapshotRequest(60.0))
        (timer,) = set(loop._scheduled) - timers  # type: ignore[attr-defined]
        assert timer.when() - loop.time() > 0.5


async def test_a_backlog_leaves_time_for_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that take a millisecond each: a few are applied at once, then as much time is left as they take."""
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        now_s, apply = [2 * perf_counter()], two.sharing._apply
        began_s = now_s[0]

        def slow(payload: bytes) -> None:
            now_s[0] += 0.001
            apply(payload)

        monkeypatch.setattr(sharing_module, "perf_counter", lambda: now_s[0])
        monkeypatch.setattr(two.sharing, "_apply", slow)
        for number in range(100):
            two.sharing._take(UpdateBatch(encode_batch(77, number, [EndedUpdate(1)])))
        assert 2 <= (now_s[0] - began_s) / 0.001 <= 6
        now_s[0] = two.sharing._free_s
        two.sharing._apply_backlog()
        assert now_s[0] < two.sharing._free_s <= now_s[0] + 3 * sharing_module.SLICE_S
        monkeypatch.setattr(sharing_module, "perf_counter", perf_counter)
        two.sharing._free_s = 0.0
        held = place(one.router, ask(), now_s=one.now_s())
        await until(lambda: alike(one, two))
        held.release(one.now_s())
        await until(lambda: not two.sharing._backlog)


async def test_what_is_silent_too_long_is_forgotten(tmp_path: Path) -> None:
    """An origin of another host that says nothing any more counts no longer."""
    async with host(tmp_path) as here:
        two = here.worker()
        await until(lambda: here.knows(two))
        stranger = here.worker()
        await until(lambda: here.knows(stranger))
        place(stranger.router, ask(), now_s=stranger.now_s())
        await until(lambda: loads(two.router))
        origin = two.sharing.applier._origins[stranger.sharing.replica_id]
        origin.last_update_s -= sharing_module.TIMEOUT_S + sharing_module.HEARTBEAT_S
        two.sharing._beat()
        assert owes_nothing(two)
        await until(
            lambda: loads(two.router),
        )


async def test_workers_find_slots_of_their_own(tmp_path: Path) -> None:
    """Among three everybody comes to sit on another place of the ring, and a lone one has all of it."""
    async with host(tmp_path) as here:
        workers = [here.worker() for _ in range(3)]
        await until(lambda: sorted(worker.router.replica_position for worker in workers) == [(0, 3), (1, 3), (2, 3)])


async def test_metrics_show_the_exchange(tmp_path: Path) -> None:
    """Sent, received and lost updates are on the metrics page of worker and index process."""
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        await until(lambda: here.knows(one, two))
        serve(one.router, ask(), now_s=one.now_s())
        await until(lambda: two.sharing.applier.applied >= 3)
        here.registry.register(ReplicaSyncCollector(two.sharing))
        shown = here.registry.get_sample_value
        assert shown("hearth_replica_sync_updates_received_total") == two.sharing.applier.applied
        assert shown("hearth_replica_sync_peers") == shown("hearth_kv_index_connected") == 1
        assert shown("hearth_replica_sync_workers") == 2
        assert shown("hearth_replica_sync_updates_lost_total", {"reason": "invalid"}) == 0
        assert shown("hearth_redis_connected") is None


async def test_workers_admit_as_one(tmp_path: Path) -> None:
    """What was promised to the stream of one worker, and what waits there, is known to its siblings."""
    tier = Tier("gold", 10, ttft_s=1.0, tpot_s=0.05)
    async with host(tmp_path) as here:
        one, two = here.worker(), here.worker()
        admissions = [Admission(worker.router) for worker in (one, two)]
        for worker, admission in zip((one, two), admissions, strict=True):
            worker.sharing.share_admission(admission)
        await until(lambda: here.knows(one, two))
        first, other = (
            admission.arrive(
                ask(), Caller(Tenant("a", tier=tier)), objective_of(tier), came_s=now_s, now_s=now_s, draw=0.0
            )
            for admission, now_s in zip(admissions, (one.now_s(), two.now_s()), strict=True)
        )
        placement = admissions[0].place(first, frozenset(), now_s=one.now_s(), draw=0.0)
        slot = placement.engine.slot
        await until(lambda: admissions[1].stalls.room_now_s(slot, two.now_s()) < 1e9)
        waiting = admissions[0].arrive(
            ask(TALK[5:]), first.caller, first.objective, came_s=one.now_s(), now_s=one.now_s(), draw=0.0
        )
        waiting.queue.put(waiting, one.now_s())

        def is_known() -> bool:
            peers = admissions[1].peers
            assert peers is not None
            peers.refresh(two.now_s())
            return other.queue.must_wait(tier)

        await until(is_known)
        placement.release(one.now_s())
        waiting.queue.take(waiting, one.now_s())
        await until(lambda: not is_known())
