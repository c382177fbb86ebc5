"""The bench of diagnosis: one injected fault from end to end, and its table."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from random import Random

import pytest

from bench.doctor.__main__ import report
from bench.doctor.cases import BY_NAME, NOTHING, Verdict, play_faults
from bench.doctor.constrained import PRICED, SETUPS, UNPRICED, ConstrainedRun, constrained_rows, lost_share
from bench.doctor.faults import FAULTS, POOL_OF
from bench.doctor.fleet import Fleet
from bench.doctor.masking import Mask
from bench.doctor.plans import healthy_plans
from bench.doctor.pods import balances_of, counts_of, page_of
from diagnosis.baseline import Baseline
from diagnosis.facts import EngineWindow
from diagnosis.readings import read_counts
from diagnosis.recipes.registry import RECIPES
from simulator.clock import run_virtually
from tests.diagnosis.scene import fleet

VERDICT = Verdict("kv_pressure", 1, ("kv_pressure",), "kv_pressure", 0.9, True, 30.0, cleared_after_s=20.0)


def test_a_paused_engine_is_named_and_cleared() -> None:
    """Pages of simulated pods, the production parser, all recipes, and the clock of the loop."""
    verdict, half = play_faults([BY_NAME["engine_stalled"]], 3, Baseline(), with_mask=True)
    assert verdict.is_right, verdict
    assert verdict.named_after_s is not None
    assert verdict.named_after_s <= BY_NAME["engine_stalled"].enough_s + 60
    assert verdict.cleared_after_s is not None
    assert verdict.cleared_after_s <= 60
    assert half is not None
    assert not half.is_confidently_wrong


def test_every_recipe_has_an_injected_fault() -> None:
    """None is tested by hand-written facts alone."""
    assert {fault.recipe for fault in FAULTS} == {recipe.name for recipe in RECIPES}
    assert set(POOL_OF) == {fault.name for fault in FAULTS}


def test_half_of_the_figures_are_missing() -> None:
    """The same ones of all pods; times and identities stay."""
    held = Mask(Random(1)).facts(fleet())
    pairs = [(each.engines[0], other.engines[0]) for each, other in zip(fleet().pods, held.pods, strict=True)]
    names = [each.name for each in fields(EngineWindow)]
    full, half = pairs[0]
    known = {name for name in names if getattr(full, name) is not None}
    kept = {name for name in known if getattr(half, name) is not None}
    assert 0.3 * len(known) < len(kept) < 0.8 * len(known)
    assert {"rank", "start_s", "end_s"} <= kept
    assert all(getattr(other, name) is None for _, other in pairs for name in known - kept)


def test_the_table_counts_right_unknown_and_wrong() -> None:
    """A wrong pod is wrong, nothing is unknown, and a guess without confidence is not confidently wrong."""
    verdicts = [
        VERDICT,
        replace(VERDICT, has_right_pod=False),
        replace(VERDICT, found=NOTHING, confidence=0.0),
        replace(VERDICT, found="redis_slow", confidence=0.6),
    ]
    assert [each.is_right for each in verdicts] == [True, False, False, False]
    assert [each.is_confidently_wrong for each in verdicts] == [False, True, False, False]
    lines, targets = report([("fault", (each, each)) for each in verdicts])
    assert "1/4" in lines[1]
    assert "kv_pressure on another pod x1" in lines[1]
    assert [target.is_met for target in targets] == [False, False, True]


def test_counts_without_a_page_are_those_that_the_parser_reads() -> None:
    """Of all pods of a fleet that has worked, restarted engines and transfers included."""

    async def run() -> None:
        fleet = Fleet(healthy_plans(), 4, asyncio.get_running_loop())
        fleet.start()
        await asyncio.sleep(40)
        fleet.restart(fleet.pods["http://rag-0:8000"].plan)
        await asyncio.sleep(5)
        for pod in fleet.pods.values():
            balances = balances_of(pod, Random(1))
            read, made = read_counts(page_of(pod, balances)), counts_of(pod, balances)
            assert read.keys() == made.keys()
            for rank, counts in made.items():
                assert read[rank].scalars == counts.scalars, pod.plan.address
                assert read[rank].histograms == counts.histograms, pod.plan.address
                assert read[rank].config == counts.config, pod.plan.address

    run_virtually(run())


def test_the_price_of_constrained_requests_is_held_to_a_fleet_without_speculation() -> None:
    """Of the same seed; the worst counts."""
    runs = [
        ConstrainedRun(seed, setup, constrained_ms, 15.0, on_plain_pods=0.5, is_found=True)
        for seed, *times in ((1, 20.0, 30.0, 21.0), (2, 25.0, 30.0, 25.0))
        for setup, constrained_ms in zip(SETUPS, times, strict=True)
    ]
    assert lost_share(runs, PRICED) == pytest.approx(1.05)
    assert lost_share(runs, UNPRICED) == pytest.approx(1.5)
    assert [row.split()[-1] for row in constrained_rows(runs)[1:]] == ["runs"] * 3
    assert "constrained 23.0" in constrained_rows(runs)[3]
