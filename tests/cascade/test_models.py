"""Cascades as values: prices, abilities, whether they judge, and the model a request starts with."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from cascade.models import EASE, Ability, Ladder, Price, Rung, Window, Wish, open_rungs, prompt_signal, start_rung
from cascade.tasks import Features, features_of

SMALL = Rung("small", Price(1e-6, None, 4e-6), context_tokens=8_000, abilities=frozenset({Ability.TOOLS}))
LARGE = Rung("large", Price(1e-5, 1e-6, 4e-5))


def test_what_an_answer_costs() -> None:
    """Cold and warm input apart where they are priced apart; seconds of a GPU on top."""
    assert SMALL.price.of(cold_tokens=100, warm_tokens=100, output_tokens=50) == pytest.approx(400e-6)
    assert LARGE.price.of(cold_tokens=100, warm_tokens=100, output_tokens=50) == pytest.approx(3100e-6)
    assert Price(per_gpu_s=2.0).of(cold_tokens=9, output_tokens=9, gpu_s=0.5) == pytest.approx(1.0)


def test_what_a_model_can() -> None:
    """Abilities and room."""
    assert SMALL.can(frozenset({Ability.TOOLS}), 8_000)
    assert not SMALL.can(frozenset({Ability.VISION}), 10)
    assert not SMALL.can(frozenset(), 8_001)
    assert LARGE.can(frozenset(Ability), 10**9)


@pytest.mark.parametrize(
    ("window", "whole", "judges"), [(None, False, False), (Window(), False, True), (None, True, True)]
)
def test_whether_a_cascade_judges(window: Window | None, whole: bool, judges: bool) -> None:
    """One that only chooses where to start may stand in any shell."""
    assert Ladder("auto", (SMALL, LARGE), window=window, whole=whole).judges is judges


def test_models_are_found_by_model() -> None:
    """By their place from the cheapest; a stranger has none."""
    ladder = Ladder("auto", (SMALL, LARGE))
    assert (ladder.at("small"), ladder.at("large"), ladder.at("other")) == (0, 1, None)


RUNGS = (Rung("small", context_tokens=1_000, abilities=frozenset()), Rung("middle"), Rung("large"))
PROMISED = LadderFile(
    *(("small", "middle", "large"), "margin", Stage.WINDOW, Promise(0.01, 0.95), Evidence(1_000, "sha256:00")),
    cuts=(Cut(0, ANY_BUCKET, 0.5), Cut(1, ANY_BUCKET, 0.4), Cut(0, "code", inf)),
    is_promised=True,
)
LADDER = Ladder("auto", RUNGS, file=PROMISED)


def test_models_that_cannot_are_skipped() -> None:
    """Ability, room, policy, and what is down."""
    assert open_rungs(LADDER, Wish()) == (0, 1, 2)
    assert open_rungs(LADDER, Wish(needs=frozenset({Ability.TOOLS}))) == (1, 2)
    assert open_rungs(LADDER, Wish(tokens=2_000)) == (1, 2)
    assert open_rungs(LADDER, Wish(least=1, most=1)) == (1,)
    assert open_rungs(LADDER, Wish(), lambda model: model != "middle") == (0, 2)


def test_the_smallest_eligible_model_begins() -> None:
    """Of those whose answers could be kept."""
    assert start_rung(LADDER, (0, 1, 2), "chat", Features()) == 0
    assert start_rung(LADDER, (1, 2), "chat", Features()) == 1
    assert start_rung(LADDER, (0, 1, 2), "code", Features()) == 1
    assert start_rung(LADDER, (), "chat", Features()) is None


def test_without_evidence_the_top_answers() -> None:
    """No file, or one that guarantees nothing."""
    assert start_rung(replace(LADDER, file=None), (0, 1), "chat", Features()) == 1
    assert start_rung(replace(LADDER, file=replace(PROMISED, is_promised=False)), (0, 1, 2), "chat", Features()) == 2


def test_without_a_calibration_the_cascade_says_which_share_begins_low() -> None:
    """All, none, or as the draw falls; a guarantee that was not made begins at the top all the same."""
    for share, draw, at in ((0.0, 0.0, 2), (1.0, 0.999, 0), (0.3, 0.29, 0), (0.3, 0.31, 2)):
        ladder = replace(LADDER, file=None, uncalibrated=share)
        assert start_rung(ladder, (0, 1, 2), "chat", Features(), draw=draw) == at
    ladder = replace(LADDER, file=replace(PROMISED, is_promised=False), uncalibrated=1.0)
    assert start_rung(ladder, (0, 1, 2), "chat", Features(), draw=0.0) == 2


def test_a_file_of_prompts_decides_by_the_prompt() -> None:
    """Easy ones begin low, hard ones higher; a signal that we cannot reckon keeps nothing low."""
    cuts = (Cut(0, ANY_BUCKET, -2.0), Cut(1, ANY_BUCKET, -5.0))
    ladder = replace(LADDER, file=replace(PROMISED, signal=EASE, stage=Stage.PROMPT, cuts=cuts))
    easy, hard = features_of(["Hi there"]), features_of(["3 * 4 = 12, so is 5 / 6 > 7? " * 40])
    assert start_rung(ladder, (0, 1, 2), "chat", easy) == 0
    assert start_rung(ladder, (0, 1, 2), "chat", hard) == 2
    assert prompt_signal("colour", easy) is None
