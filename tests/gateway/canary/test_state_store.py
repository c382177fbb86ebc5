"""The state of canaries on disk: one verdict for all workers of a host, kept over restarts."""

from __future__ import annotations

import asyncio
import fcntl
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


async def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    """Of many workers that add to the file at the same time none is lost."""

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
