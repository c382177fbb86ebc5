"""A cascade whose smaller models keep nothing, or that has no guarantee to use: it says so, and asks nobody in vain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cascade.calibration_file import AcceptanceThreshold, Comparison, ReferenceOutcomes, SignalStage
from cascade.drift import MIN_ANSWERS, TRIAL_INTERVAL
from cascade.judging import HoldbackSettings
from cascade.models import Cascade, CascadeModel, HoldbackWindow
from gateway.cascades.cascade_config import CascadeConfig
from gateway.cascades.cascades import Cascades, show_cascades
from routing.blocks import cut_prompt
from routing.request import Api, Request
from tenancy.tenants import Tenant
from tests.gateway.cascades.test_choosing_models import BODY, MODELS, Asks, a_router
from tests.gateway.cascades.test_choosing_models import some_cascades as some_ladders
from tests.scenarios.cascade_pods import CASCADE, CascadePods, asking, calibration_file, settled, some_cascade_pods

CHAT = "/v1/chat/completions"
NEVER = 0.99


class Log:
    """Takes down what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, level: str, message: str, **fields: object) -> None:
        self.lines.append((level, message, fields))

    def stated(self) -> list[tuple[str, str]]:
        return [line[:2] for line in self.lines]


def of_two(log: Log, **ladder: Any) -> Cascades:
    """Of two models; draws rise evenly from 0 to 1."""
    draws = iter(number / 100 % 1 for number in range(100_000))
    rungs = (CascadeModel(MODELS[0]), CascadeModel(MODELS[2]))
    stated: dict[str, Any] = {"holdback_window": HoldbackWindow(), "judges_unary": True} | ladder
    served = CascadeConfig(Cascade("auto", rungs, **stated), HoldbackSettings())
    return Cascades(a_router(), {"auto": served}, clock=lambda: 2.0, draw=lambda: next(draws), log_event=log)


def starts(cascades: Cascades, count: int = 1, session: str | None = None, *, stream: bool = True) -> list[str]:
    """The models that so many requests begin at."""
    requested = Request("r", Api.CHAT, "auto", cut_prompt(b"Hi", 7), stream=stream, session=session)
    return [cascades.plan_run(requested, BODY, Tenant("t"), {}, Asks(), 2.0).model for _ in range(count)]


SMALL, BIG = MODELS[0], MODELS[2]
FILE = replace(calibration_file(0.5), models=(SMALL, BIG))


def test_a_frozen_model_is_called_seldom_and_recovers() -> None:
    """One warning, one request in so many, and all of them again with the first answer that is kept."""
    log = Log()
    cascades = of_two(log, calibration=FILE)
    assert set(starts(cascades, 200)) == {SMALL}
    for _ in range(MIN_ANSWERS):
        cascades.shadow_sampler.record_verdict("auto", 0, is_kept=False)
    assert log.stated() == [("warning", "cascade_model_rejects_all")]
    assert {"cascade": "auto", "model": SMALL, "rejected_in_a_row": MIN_ANSWERS}.items() <= log.lines[0][2].items()
    assert starts(cascades, 3 * TRIAL_INTERVAL).count(SMALL) == 3
    (shown,) = show_cascades(cascades)
    assert shown["guarantee"]["frozen_models"] == [SMALL]
    cascades.shadow_sampler.record_verdict("auto", 0, is_kept=True)
    assert log.stated()[1:] == [("info", "cascade_model_recovered")]
    assert set(starts(cascades, 200)) == {SMALL}


def test_trials_of_a_frozen_model_lower_what_shadows_have_raised() -> None:
    """The way back from thresholds that shadows have raised beyond what answers reach."""
    reference = (ReferenceOutcomes(0, Comparison.TEXT, 1_000, 600, 60, 0),)
    cuts = (AcceptanceThreshold(0, "*", 0.5, grey=4.0),)
    cascades = of_two(Log(), calibration=replace(FILE, cuts=cuts, reference=reference))
    kept = cascades.shadow_sampler._kept["auto"]
    kept.drift.record_sample(0, 1)
    assert not kept.drift.calibration.cuts[0].accepts(0.75)
    for _ in range(MIN_ANSWERS - 1):
        cascades.shadow_sampler.record_verdict("auto", 0, is_kept=False)
    assert not kept.drift.calibration.cuts[0].accepts(0.75)
    for _ in range(100):
        cascades.shadow_sampler.record_verdict("auto", 0, is_kept=False)
    assert kept.drift.calibration == kept.calibration


def test_a_frozen_model_is_passed_over_on_the_way_up() -> None:
    """Three models, of which the middle keeps nothing."""
    router = a_router()
    cascades = some_ladders(router)
    for _ in range(MIN_ANSWERS):
        cascades.shadow_sampler.record_verdict("auto", 1, is_kept=False)
    requested = Request("r", Api.CHAT, "auto", cut_prompt(b"Hi", 7), stream=True)
    reached = []
    for _ in range(2 * TRIAL_INTERVAL):
        climb = cascades.plan_run(requested, BODY, Tenant("t"), {}, Asks(), 2.0)
        assert climb.model == SMALL
        assert climb.escalate()
        reached.append(climb.model)
    assert reached.count("middle") == 2
    assert reached.count(BIG) == 2 * TRIAL_INTERVAL - 2


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, 0), (0.0, 0), (1.0, 100), (0.25, 25)],
    ids=["default", "largest", "smallest", "share"],
)
def test_an_uncalibrated_cascade_begins_as_configured(share: float | None, expected: int) -> None:
    """By default at the top."""
    cascades = of_two(Log(), **({} if share is None else {"uncalibrated_share": share}))
    assert starts(cascades, 100).count(SMALL) == expected


def test_a_conversation_without_a_calibration_stays_with_its_model() -> None:
    """The share is one of conversations: their prefix stays warm."""
    cascades = of_two(Log(), uncalibrated_share=0.5)
    cascades._sessions.put(("auto", "low"), 0)
    cascades._sessions.put(("auto", "high"), 1)
    assert set(starts(cascades, 50, "low")) == {SMALL}
    assert set(starts(cascades, 50, "high")) == {BIG}


OPEN: dict[str, Any] = {"holdback_window": None}


@pytest.mark.parametrize(
    ("ladder", "level", "event"),
    [
        ({}, "warning", "cascade_uncalibrated"),
        ({"calibration": replace(FILE, is_promised=False)}, "warning", "cascade_without_guarantee"),
        ({"calibration": FILE, **OPEN}, "warning", "cascade_calibration_unusable"),
        (
            {"calibration": replace(FILE, stage=SignalStage.WHOLE), "judges_unary": False},
            "warning",
            "cascade_calibration_unusable",
        ),
    ],
)
def test_a_cascade_that_uses_no_guarantee_warns_once(ladder: dict[str, Any], level: str, event: str) -> None:
    """At start, with what happens and what to do; again only when the reason has changed."""
    log = Log()
    cascades = of_two(log, **ladder)
    assert log.stated() == [(level, event)]
    assert log.lines[0][2]["effect"] == f"{BIG} answers every request"
    assert log.lines[0][2]["fix"]
    served = cascades._served
    cascades.apply(served)
    assert len(log.lines) == 1
    assert show_cascades(cascades)[0]["inactive"]["reason"] == event
    assert set(starts(cascades, 20) + starts(cascades, 20, stream=False)) == {BIG}
    cascades.apply(
        {
            "auto": replace(
                served["auto"],
                cascade=replace(served["auto"].cascade, calibration=FILE, holdback_window=HoldbackWindow()),
            )
        }
    )
    assert len(log.lines) == 1
    assert show_cascades(cascades)[0]["inactive"] is None


def chats(rungs: CascadePods) -> int:
    """How often the small model was asked."""
    return sum(each.path == CHAT for each in rungs.small.received)


async def view(rungs: CascadePods) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(rungs.gateway.at("admin", "/cascades")) as answer:
        return dict((await answer.json())["cascades"][0])


async def test_a_frozen_cascade_shows_in_metrics_admin_and_log(tmp_path: Path) -> None:
    """A whole gateway: the small model is asked in vain so often, and then no more."""
    async with some_cascade_pods(tmp_path, NEVER, check_unary=True) as rungs:
        for number in range(MIN_ANSWERS):
            _, _, head = await rungs.post(CHAT, asking(f"Question {number}", max_tokens=8))
            assert head["x-hearth-cascade-model"] == "big"
        await settled(rungs, head["x-hearth-request-id"])
        warning = await rungs.gateway.until("cascade_model_rejects_all")
        assert (warning["level"], warning["model"]) == ("warning", "small")
        metrics = await rungs.metrics()
        assert f'hearth_cascade_model_frozen{{cascade="{CASCADE}",model_name="small"}} 1.0' in metrics
        assert f'hearth_cascade_threshold_raised_steps{{cascade="{CASCADE}",model_name="small"}} 0.0' in metrics
        assert (await view(rungs))["guarantee"]["frozen_models"] == ["small"]
        requested = chats(rungs)
        for number in range(20):
            await rungs.post(CHAT, asking(f"Another question {number}", max_tokens=8))
        assert chats(rungs) == requested


async def test_an_uncalibrated_cascade_warns_at_start_and_begins_as_configured(tmp_path: Path) -> None:
    """By default the largest answers, with a warning; `smallest` is what the operator wants, so it is no warning."""
    async with some_cascade_pods(tmp_path, calibration=None) as rungs:
        warning = await rungs.gateway.until("cascade_uncalibrated")
        assert (warning["level"], warning["effect"]) == ("warning", "big answers every request")
        assert "hearth cascade calibrate" in warning["fix"]
        _, _, head = await rungs.post(CHAT, asking())
        assert head["x-hearth-cascade-model"] == "big"
    async with some_cascade_pods(tmp_path, calibration=None, uncalibrated="smallest") as rungs:
        line = await rungs.gateway.until("cascade_uncalibrated")
        assert line["level"] == "info"
        for stream in (True, False):
            _, _, head = await rungs.post(CHAT, asking(stream=stream))
            assert head["x-hearth-cascade-model"] == "small"
        _, _, head = await rungs.post(CHAT, asking(response_format={"type": "json_object"}, max_tokens=3))
        assert head["x-hearth-cascade-model"] == "big"
