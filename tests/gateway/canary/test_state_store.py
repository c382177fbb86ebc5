"""The state of canaries on disk: one verdict for all workers of a host, kept over restarts."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.canary import state_store
from gateway.canary.state_store import FileStore, MemoryStore, StateUnavailable
from routing.canary.evidence import DifferenceEvidence, RatioEvidence, TrialEvidence
from routing.canary.rollout import CanaryUse
from routing.canary.verdict import NO_STATE, CanaryState, TrialStep, Verdict, VerdictReason, advance
from tests.gateway.canary.scene import CANARY, STANDING, TERMS, Scene


def store_in(folder: Path) -> FileStore:
    """The file of a worker: each opens it anew."""
    return FileStore(folder / "canary.json")


async def test_workers_have_one_verdict_that_survives_a_restart(tmp_path: Path) -> None:
    """Each of two workers sees half of the comparisons; both follow the verdict, and so does one that starts later."""
    one, two = Scene(store_in(tmp_path)), Scene(store_in(tmp_path))
    for worker in (one, two):
        await worker.look()
    for _ in range(10):
        for worker in (one, two):
            await worker.serve_many(20, slower=3.0)
    for worker in (one, two):
        await worker.look(11.0)
        assert (worker.controller.verdict, worker.rollout.use) == (Verdict.REVERT, CanaryUse.NOTHING)
    assert one.controller.state == two.controller.state
    assert one.controller.trial is not None
    assert one.controller.trial.evidence.ttft.total < 100
    restarted = Scene(store_in(tmp_path))
    await restarted.look()
    assert restarted.controller.verdict is Verdict.REVERT
    assert set(await restarted.serve_many(20)) == set(STANDING)
    assert restarted.events == ["canary_reverted"]


async def test_a_restart_keeps_the_evidence(tmp_path: Path) -> None:
    """A trial goes on where it was, and decides on all of it."""
    scene = Scene(store_in(tmp_path))
    await scene.look()
    await scene.serve_many(60)
    await scene.look()
    seen = scene.controller.trial
    again = Scene(store_in(tmp_path))
    await again.look()
    assert again.controller.trial is not None
    assert seen is not None
    assert again.controller.trial.evidence == seen.evidence
    assert seen.evidence.ttft.total == 15
    assert CANARY in await again.serve_many(20)


async def test_a_file_that_is_no_state_is_left_alone(tmp_path: Path) -> None:
    """The canary serves nothing, and the error names the file and what to do."""
    (tmp_path / "canary.json").write_text("{")
    scene = Scene(store_in(tmp_path))
    await scene.look()
    assert scene.events == ["canary_state_unavailable"]
    assert "canary.json: cannot be read as a state of canaries" in scene.logged[0][1]["error"]
    assert scene.controller.reason is VerdictReason.STATE_UNREAD
    assert (tmp_path / "canary.json").read_text() == "{"
    with pytest.raises(StateUnavailable, match="No such file"):
        await FileStore(tmp_path / "none" / "canary.json").update(lambda _: NO_STATE)


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def a_folder(file: Path) -> None:
    """A folder where the file should be."""
    file.mkdir()


def a_locked_folder(file: Path) -> None:
    """A folder where its lock should be."""
    file.with_name(f"{file.name}.lock").mkdir()


def emptied(file: Path) -> None:
    """What some file systems leave of a file after a loss of power."""
    file.write_bytes(b"")


def cut(file: Path) -> None:
    """Half of a state."""
    file.write_text('{"running":"v2||v2","trial":{"name":"v2","evid')


def nested(file: Path) -> None:
    """JSON that no stack holds, in a field that no version has."""
    file.write_text('{"x":' + "[" * 300_000)


@pytest.mark.parametrize("spoil", [a_folder, a_locked_folder, emptied, cut, nested])
async def test_a_file_that_cannot_be_used_is_reported(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Once, by its name; the canary serves nothing, the standing pods everything, and the file is left as it is."""
    file = tmp_path / "canary.json"
    spoil(file)
    before = names(tmp_path)
    scene = Scene(store_in(tmp_path))
    for _ in range(2):
        await scene.look()
    assert (scene.events, scene.controller.reason) == (["canary_state_unavailable"], VerdictReason.STATE_UNREAD)
    assert "canary.json" in scene.logged[0][1]["error"]
    assert set(await scene.serve_many(20)) == set(STANDING)
    assert set(before) <= set(names(tmp_path)) <= {"canary.json", "canary.json.lock"}


async def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last state stays in the file, nothing lies beside it, and what was compared meanwhile is added later."""
    scene = Scene(store_in(tmp_path))
    await scene.look()
    kept = (tmp_path / "canary.json").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        await scene.serve_many(400, slower=3.0)
        assert (scene.controller.verdict, scene.rollout.use) == (Verdict.HOLD, CanaryUse.SHARE)
    assert scene.events == ["canary_started", "canary_state_unavailable"]
    assert "No space left on device" in scene.controller.show()["state_error"]
    assert (tmp_path / "canary.json").read_bytes() == kept
    assert names(tmp_path) == ["canary.json", "canary.json.lock"]
    await scene.look()
    assert scene.controller.verdict is Verdict.REVERT


@pytest.mark.parametrize("has_ended", [True, False])
async def test_on_a_read_only_disk_an_old_verdict_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """Also for a gateway that starts: a promoted canary keeps serving. A trial does not go on there."""
    scene = Scene(store_in(tmp_path))
    await scene.look()
    await scene.serve_many(600 if has_ended else 20, slower=0.9)
    opened = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    restarted = Scene(store_in(tmp_path))
    await restarted.look(100.0)
    expected = (Verdict.PROMOTE, CanaryUse.ALL) if has_ended else (Verdict.HOLD, CanaryUse.NOTHING)
    assert (restarted.controller.verdict, restarted.rollout.use) == expected
    assert has_ended or "Read-only file system" in restarted.controller.show()["state_error"]


async def test_a_gateway_that_ends_in_the_middle_of_a_write_leaves_a_state(tmp_path: Path) -> None:
    """Its canary was removed from the configuration, say, while it wrote the verdict: the others read it, old or new,
    and end the trial by what they see themselves.
    """
    ending, other = Scene(store_in(tmp_path)), Scene(store_in(tmp_path))
    for scene in (ending, other):
        await scene.look()
    for number in range(400):
        ending.serve(number, slower=3.0)
    task = asyncio.create_task(ending.look())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await other.look(11.0)
    assert other.controller.show()["state_error"] is None
    for number in range(400):
        other.serve(number, slower=3.0)
    await other.look(11.0)
    assert other.controller.verdict is Verdict.REVERT


async def test_workers_with_other_limits_have_one_verdict(tmp_path: Path) -> None:
    """Of two with unlike configurations each judges by the limits with which the trial began."""
    first = Scene(store_in(tmp_path))
    await first.look()
    hasty = Scene(store_in(tmp_path), replace(TERMS, max_ttft_ratio=3.5, max_tpot_ratio=3.5, min_comparisons=1))
    await hasty.look()
    for _ in range(10):
        for worker in (first, hasty):
            await worker.serve_many(20, slower=3.0)
    for worker in (first, hasty):
        await worker.look(11.0)
        assert worker.controller.reason is VerdictReason.TTFT_WORSE


async def test_changes_at_once_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many workers that add to the file at the same time none is lost."""
    monkeypatch.setattr(state_store, "LOCK_WAIT_S", 60.0)

    def one_more(stored: CanaryState | None) -> CanaryState:
        step = TrialStep(TrialEvidence(errors=DifferenceEvidence(same=1)))
        return advance(stored or NO_STATE, TERMS, step, 0.0)

    await asyncio.gather(*(store_in(tmp_path).update(one_more) for _ in range(20)))
    state = await store_in(tmp_path).update(lambda stored: stored or NO_STATE)
    assert state.trial is not None
    assert state.trial.evidence.errors == DifferenceEvidence(same=20)


ratios = st.dictionaries(st.sampled_from((-4, 0, 6, 20)), st.integers(1, 80), max_size=2).map(RatioEvidence)
steps = st.builds(TrialEvidence, ratios, ratios, st.builds(DifferenceEvidence, same=st.integers(0, 300)))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), steps), max_size=12))
def test_gateways_agree_whatever_happens(turns: list[tuple[int, bool, TrialEvidence]]) -> None:
    """Three gateways in any order, each restarted at any time: at the end all have one verdict, and none that a gateway
    ever had was left.
    """

    async def play(folder: Path) -> None:
        gateways = [Scene(store_in(folder)) for _ in range(3)]
        final: Verdict | None = None
        for at, restarts, evidence in turns:
            if restarts:
                gateways[at] = Scene(store_in(folder))
            gateways[at].controller.comparisons.give_back(evidence)
            await gateways[at].look(11.0)
            verdict = gateways[at].controller.verdict
            assert final in (None, verdict)
            final = None if verdict is Verdict.HOLD else verdict
        for gateway in gateways:
            await gateway.look(11.0)
        for gateway in gateways:
            await gateway.look(11.0)
        assert len({gateway.controller.verdict for gateway in gateways}) == 1
        assert final in (None, gateways[0].controller.verdict)

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def test_a_gateway_alone_keeps_it_in_memory() -> None:
    """For as long as it runs."""
    store = MemoryStore()
    assert await store.update(lambda stored: CanaryState() if stored is None else stored) == NO_STATE


async def test_a_lock_that_is_not_released_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a worker that was paused with it, say: no thread waits for it for ever, and the next change succeeds."""
    monkeypatch.setattr(state_store, "LOCK_WAIT_S", 0.0)
    store = store_in(tmp_path)
    with (tmp_path / "canary.json.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateUnavailable, match="canary"):
            await store.update(lambda _: NO_STATE)
    assert await store.update(lambda _: NO_STATE) == NO_STATE
