"""Where a request escalates to: the lost warm prefix is in the price at every rise, not only where it begins."""

from __future__ import annotations

import json

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.judging import AnswerJudge, HoldbackSettings
from cascade.logprobs import LogprobFilter
from cascade.models import Cascade, CascadeModel, HoldbackWindow, Price
from gateway.cascades.cascade_config import CascadeConfig
from gateway.cascades.cascades import Cascades
from routing.blocks import cut_prompt
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request
from scorers.registry import routings
from tenancy.tenants import Tenant

MODELS = ("small", "middle", "big")
PROMPT = cut_prompt(b"once upon a time " * 4000, 7)
BODY = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "Hi"}]}).encode()


class Asks:
    """A shell that only makes requests."""

    def set_judge(self, judge: AnswerJudge | None) -> None: ...

    def ask(self, model: str, top: int | None) -> tuple[Request, LogprobFilter | None]:
        return Request("r", Api.CHAT, model, PROMPT, stream=True), None


def a_router() -> Router:
    router = Router(routings()["warm"])
    for model in MODELS:
        router.put_pod(Pod(f"http://{model}", PodState.READY, frozenset({model})))
        router.reshape_pod(f"http://{model}", [EngineShape(kv_tokens=1_000_000)])
    return router


def warm(router: Router, model: str) -> None:
    """Its engine has answered the prompt before."""
    placement = router.place(Asks().ask(model, None)[0], avoid=frozenset(), now_s=1.0, draw=0.5)
    placement.first_token(1.1)
    placement.settle(None, 1.2)
    placement.release(1.2)


def some_cascades(router: Router) -> Cascades:
    file = CalibrationFile(
        models=MODELS,
        signal="margin",
        stage=SignalStage.WINDOW,
        promise=QualityGuarantee(0.01, 0.95),
        evidence=CalibrationEvidence(1000, "sha256:0", kept=0.5),
        cuts=tuple(AcceptanceThreshold(rung, ANY_BUCKET, 0.5) for rung in (0, 1)),
        is_promised=True,
    )
    prices = (Price(1e-7, None, 1e-7), Price(1e-6, 1e-7, 1e-6), Price(3e-6, 5e-7, 3e-6))
    rungs = tuple(CascadeModel(model, price) for model, price in zip(MODELS, prices, strict=True))
    return Cascades(
        router,
        {
            "auto": CascadeConfig(
                Cascade("auto", rungs, holdback_window=HoldbackWindow(), calibration=file), HoldbackSettings()
            )
        },
        clock=lambda: 2.0,
    )


@pytest.mark.parametrize(("is_warm", "goes_to"), [([], "middle"), (["big"], "big"), (["big", "middle"], "middle")])
def test_a_warm_prefix_further_up_is_escalated_to_at_once(is_warm: list[str], goes_to: str) -> None:
    """Cold everywhere, or warm everywhere above: the next model; warm on the one after it alone: that one."""
    router = a_router()
    requested = Request("r", Api.CHAT, "auto", PROMPT, stream=True)
    climb = some_cascades(router).plan_run(requested, BODY, Tenant("t"), {}, Asks(), 2.0)
    assert climb.model == "small"
    for model in is_warm:
        warm(router, model)
    assert climb.escalate()
    assert climb.model == goes_to
