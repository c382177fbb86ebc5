"""Cascades as values: prices, abilities, whether they judge, and the model a request starts with."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.models import (
    EASE,
    Ability,
    Cascade,
    CascadeModel,
    HoldbackWindow,
    Price,
    StartConstraints,
    eligible_models,
    initial_model,
    prompt_signal,
)
from cascade.tasks import PromptFeatures, prompt_features

SMALL = CascadeModel("small", Price(1e-6, None, 4e-6), context_tokens=8_000, abilities=frozenset({Ability.TOOLS}))
LARGE = CascadeModel("large", Price(1e-5, 1e-6, 4e-5))


def test_what_an_answer_costs() -> None:
    """Cold and warm input apart where they are priced apart; seconds of a GPU on top."""
    assert SMALL.price.cost(cold_tokens=100, warm_tokens=100, output_tokens=50) == pytest.approx(400e-6)
    assert LARGE.price.cost(cold_tokens=100, warm_tokens=100, output_tokens=50) == pytest.approx(3100e-6)
    assert Price(per_gpu_s=2.0).cost(cold_tokens=9, output_tokens=9, gpu_s=0.5) == pytest.approx(1.0)


def test_what_a_model_can() -> None:
    """Abilities and room."""
    assert SMALL.can_take(frozenset({Ability.TOOLS}), 8_000)
    assert not SMALL.can_take(frozenset({Ability.VISION}), 10)
    assert not SMALL.can_take(frozenset(), 8_001)
    assert LARGE.can_take(frozenset(Ability), 10**9)


@pytest.mark.parametrize(
    ("window", "complete", "judges"), [(None, False, False), (HoldbackWindow(), False, True), (None, True, True)]
)
def test_whether_a_cascade_judges(window: HoldbackWindow | None, complete: bool, judges: bool) -> None:
    """One that only chooses where to start may stand in any shell."""
    assert Cascade("auto", (SMALL, LARGE), holdback_window=window, judges_unary=complete).judges_answers is judges


def test_models_are_found_by_model() -> None:
    """By their place from the cheapest; a stranger has none."""
    ladder = Cascade("auto", (SMALL, LARGE))
    assert (ladder.index_of("small"), ladder.index_of("large"), ladder.index_of("other")) == (0, 1, None)


MODELS = (
    CascadeModel("small", context_tokens=1_000, abilities=frozenset()),
    CascadeModel("middle"),
    CascadeModel("large"),
)
PROMISED = CalibrationFile(
    *(
        ("small", "middle", "large"),
        "margin",
        SignalStage.WINDOW,
        QualityGuarantee(0.01, 0.95),
        CalibrationEvidence(1_000, "sha256:00"),
    ),
    cuts=(
        AcceptanceThreshold(0, ANY_BUCKET, 0.5),
        AcceptanceThreshold(1, ANY_BUCKET, 0.4),
        AcceptanceThreshold(0, "code", inf),
    ),
    is_promised=True,
)
CASCADE = Cascade("auto", MODELS, calibration=PROMISED)


def test_models_that_cannot_are_skipped() -> None:
    """Ability, room, policy, and what is down."""
    assert eligible_models(CASCADE, StartConstraints()) == (0, 1, 2)
    assert eligible_models(CASCADE, StartConstraints(needs=frozenset({Ability.TOOLS}))) == (1, 2)
    assert eligible_models(CASCADE, StartConstraints(tokens=2_000)) == (1, 2)
    assert eligible_models(CASCADE, StartConstraints(min_index=1, max_index=1)) == (1,)
    assert eligible_models(CASCADE, StartConstraints(), lambda model: model != "middle") == (0, 2)


def test_the_smallest_eligible_model_begins() -> None:
    """Of those whose answers could be kept."""
    assert initial_model(CASCADE, (0, 1, 2), "chat", PromptFeatures()) == 0
    assert initial_model(CASCADE, (1, 2), "chat", PromptFeatures()) == 1
    assert initial_model(CASCADE, (0, 1, 2), "code", PromptFeatures()) == 1
    assert initial_model(CASCADE, (), "chat", PromptFeatures()) is None


def test_without_evidence_the_top_answers() -> None:
    """No file, or one that guarantees nothing."""
    assert initial_model(replace(CASCADE, calibration=None), (0, 1), "chat", PromptFeatures()) == 1
    assert (
        initial_model(
            replace(CASCADE, calibration=replace(PROMISED, is_promised=False)), (0, 1, 2), "chat", PromptFeatures()
        )
        == 2
    )


def test_without_a_calibration_the_cascade_says_which_share_begins_low() -> None:
    """All, none, or as the draw falls; a guarantee that was not made begins at the top all the same."""
    for share, draw, at in ((0.0, 0.0, 2), (1.0, 0.999, 0), (0.3, 0.29, 0), (0.3, 0.31, 2)):
        ladder = replace(CASCADE, calibration=None, uncalibrated_share=share)
        assert initial_model(ladder, (0, 1, 2), "chat", PromptFeatures(), draw=draw) == at
    ladder = replace(CASCADE, calibration=replace(PROMISED, is_promised=False), uncalibrated_share=1.0)
    assert initial_model(ladder, (0, 1, 2), "chat", PromptFeatures(), draw=0.0) == 2


def test_a_file_of_prompts_decides_by_the_prompt() -> None:
    """Easy ones begin low, hard ones higher; a signal that we cannot reckon keeps nothing low."""
    cuts = (AcceptanceThreshold(0, ANY_BUCKET, -2.0), AcceptanceThreshold(1, ANY_BUCKET, -5.0))
    ladder = replace(CASCADE, calibration=replace(PROMISED, signal=EASE, stage=SignalStage.PROMPT, cuts=cuts))
    easy, hard = prompt_features(["Hi there"]), prompt_features(["3 * 4 = 12, so is 5 / 6 > 7? " * 40])
    assert initial_model(ladder, (0, 1, 2), "chat", easy) == 0
    assert initial_model(ladder, (0, 1, 2), "chat", hard) == 2
    assert prompt_signal("colour", easy) is None
