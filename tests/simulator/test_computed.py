"""Profiles computed from public figures: what ships is what the code computes, and it is plausible."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.computed import ACCELERATORS, FOLDER, MODELS, Accelerator, Model, compute, file_name, main, weights_read
from simulator.engine_profile import COMPUTED, load_engine_profile

PAIRS = [(card, model) for card in ACCELERATORS for model in MODELS]


def test_what_ships_is_what_is_computed(tmp_path: Path) -> None:
    """After a change of the arithmetic run `python -m simulator.computed`."""
    main([str(tmp_path)])
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize(("card", "model"), PAIRS, ids=lambda one: one.name)
def test_every_file_says_that_it_was_computed(card: Accelerator, model: Model) -> None:
    """Its predictions are unverified on any hardware, its own included."""
    profile = load_engine_profile(FOLDER / file_name(card, model))
    assert profile.source == COMPUTED
    assert not profile.is_verified_on(None)
    assert not profile.is_verified_on(card.name)


@pytest.mark.parametrize(("card", "model"), PAIRS, ids=lambda one: one.name)
def test_decoding_reads_the_weights_and_prefill_computes(card: Accelerator, model: Model) -> None:
    """A step of one token takes at least the weights it reads, one of 8,192 at least its operations."""
    engine = compute(card, model).engine
    assert engine.step_s([], 1, 0) > weights_read(model, 1) / card.bandwidth
    assert engine.step_s([(0, 8_192)], 0, 0) > 8_192 * 2 * model.active / card.fp8_flops


def test_experts_are_read_as_tokens_are_sent_to_them() -> None:
    """One token reads the active parameters, many read all; a dense model always reads all."""
    dense, sparse = MODELS
    assert weights_read(dense, 1) == dense.parameters
    assert weights_read(sparse, 1) == pytest.approx(sparse.active)
    assert weights_read(sparse, 10_000) == pytest.approx(sparse.parameters)
