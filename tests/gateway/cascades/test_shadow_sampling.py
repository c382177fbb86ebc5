"""Shadow samples: a judge asked in both orders, references by source, and what a suspicion does to sampling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from cascade.calibration_file import CalibrationFile, Comparison, ReferenceOutcomes
from cascade.drift import LEARNED_SAMPLES, SampleOutcome
from cascade.judging import HoldbackSettings
from cascade.models import Cascade, CascadeModel
from gateway.cascades.cascade_config import CascadeConfig
from gateway.cascades.cascades import Cascades, show_cascades
from gateway.cascades.shadow_sampling import ShadowAnswer, ShadowSample, ShadowSampler, accepted_shares
from gateway.config.cascades import ShadowEntry
from routing.request import Usage
from tests.gateway.cascades.test_choosing_models import BODY, a_router
from tests.gateway.cascades.test_frozen import Log
from tests.scenarios.cascade_pods import calibration_file

FILE = replace(calibration_file(0.5), models=("small", "big"))


def sampler(log: Log, file: CalibrationFile = FILE, **shadow: object) -> ShadowSampler:
    found = ShadowSampler(draw=lambda: 0.5, clock=lambda: 0.0, log_event=log)
    cascade = Cascade("auto", (CascadeModel("small"), CascadeModel("big")), calibration=file)
    entry = ShadowEntry(**{"share": 0.2} | shadow)  # type: ignore[arg-type]
    found.apply({"auto": CascadeConfig(cascade, HoldbackSettings(), entry)})
    return found


def judge(verdict_on: Callable[[str, str], str]) -> Callable[[bytes | None, str], Awaitable[ShadowAnswer | None]]:
    """A judge model that says something of the first and the second answer."""

    async def ask(question: bytes | None, model: str) -> ShadowAnswer | None:
        assert question is not None
        text = question.decode()
        first = text.partition("First answer:\n")[2].partition("\n")[0]
        second = text.partition("Second answer:\n")[2].partition("\n")[0]
        verdict = verdict_on(first, second)
        return None if verdict == "nothing" else ShadowAnswer(verdict, Usage(10, 1))

    return ask


def better(first: str, second: str) -> str:
    return "SAME" if len(first) == len(second) else "FIRST" if len(first) > len(second) else "SECOND"


@pytest.mark.parametrize(
    ("verdict_on", "ours", "theirs", "outcome", "tokens"),
    [
        (better, "short", "longer one", 1, 20),
        (better, "longer one", "short", -1, 20),
        (better, "one", "two", 0, 20),
        (lambda *_: "FIRST", "one", "two", 0, 20),
        (lambda *_: "DIFFERENT", "one", "two", 1, 10),
        (lambda *_: "well", "one", "two", None, 10),
        (lambda *_: "nothing", "one", "two", None, 0),
    ],
)
async def test_a_judge_is_asked_in_both_orders(
    verdict_on: Callable[[str, str], str], ours: str, theirs: str, outcome: int | None, tokens: int
) -> None:
    """Verdicts that follow the order cancel out; what is no verdict is no sample. Its tokens are counted."""
    found, usage = await sampler(Log())._judged("judge", ShadowSample(0.0, 0.0, BODY, judge(verdict_on)), ours, theirs)
    assert found == outcome
    assert usage.prompt_tokens == tokens


def test_the_reference_is_of_the_same_comparison() -> None:
    """A file's outcomes by a judge do not serve texts; a declared share does."""
    known = replace(FILE, reference=(ReferenceOutcomes(0, Comparison.JUDGE, 1_000, 600, 20, 10),))
    by_judge, by_text = sampler(Log(), known, judge_model="judge"), sampler(Log(), known)
    declared = sampler(Log(), known, max_mismatch_share=0.1)
    for found, missing in ((by_judge, 0), (by_text, LEARNED_SAMPLES), (declared, 0)):
        status = found.guarantee_status("auto")
        assert status is not None
        assert status.samples_to_learn == missing


def test_a_comparison_that_always_differs_is_reported() -> None:
    """Its reference is learned, and nothing would stand out against it."""
    log = Log()
    found = sampler(log)
    for _ in range(LEARNED_SAMPLES):
        found._take("auto", found._kept["auto"], SampleOutcome(0, 1))
    assert log.stated() == [("warning", "cascade_drift_reference_learned")]


def test_a_suspicion_is_logged_and_shown() -> None:
    """Once, with what would restore the guarantee; a withdrawal after it too."""
    log = Log()
    known = replace(FILE, reference=(ReferenceOutcomes(0, Comparison.TEXT, 1_000, 600, 12, 0),))
    served = CascadeConfig(
        Cascade("auto", (CascadeModel("small"), CascadeModel("big")), calibration=known),
        HoldbackSettings(),
        ShadowEntry(share=0.2),
    )
    cascades = Cascades(a_router(), {"auto": served}, log_event=log)
    found = cascades.shadow_sampler
    while not found._kept["auto"].drift.is_suspected:
        found._take("auto", found._kept["auto"], SampleOutcome(0, 1))
    assert log.stated()[-1] == ("warning", "cascade_drift_suspected")
    (shown,) = show_cascades(cascades)
    assert shown["guarantee"]["drift"]["is_suspected"]
    assert "new calibration" in shown["guarantee"]["drift"]["restored_by"]
    while not found._kept["auto"].drift.is_withdrawn:
        found._take("auto", found._kept["auto"], SampleOutcome(0, 1))
    assert log.stated()[-1] == ("warning", "cascade_guarantee_withdrawn")
    assert log.stated().count(("warning", "cascade_drift_suspected")) == 1


def test_shares_of_accepted_answers_are_by_model() -> None:
    """Of the file's reference; of an older file its share is divided."""
    reference = (
        ReferenceOutcomes(0, Comparison.SCORES, 1_000, 50, 1, 0),
        ReferenceOutcomes(1, Comparison.SCORES, 950, 380, 5, 0),
    )
    three = replace(FILE, models=("small", "middle", "big"))
    assert accepted_shares(replace(three, reference=reference)) == (0.05, 0.4)
    assert accepted_shares(three) == (0.3, 0.3)
