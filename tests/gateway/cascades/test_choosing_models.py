"""Where a request escalates to: the lost warm prefix is in the price at every rise, not only where it begins."""

from __future__ import annotations

import json

import pytest

from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from cascade.judging import HoldBack, Judge
from cascade.logprobs import Trim
from cascade.models import Ladder, Price, Rung, Window
from gateway.cascades.cascade_config import Served
from gateway.cascades.cascades import Ladders
from routing.blocks import cut_prompt
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, Standing
from routing.request import Api, Request
from scorers.registry import routings
from tenancy.tenants import Tenant

MODELS = ("small", "middle", "big")
PROMPT = cut_prompt(b"once upon a time " * 4000, 7)
BODY = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "Hi"}]}).encode()


class Asks:
    """A shell that only makes requests."""

    def judge(self, judge: Judge | None) -> None: ...

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        return Request("r", Api.CHAT, model, PROMPT, stream=True), None


def a_router() -> Router:
    router = Router(routings()["warm"])
    for model in MODELS:
        router.put_pod(Pod(f"http://{model}", Standing.READY, frozenset({model})))
        router.reshape_pod(f"http://{model}", [EngineShape(kv_tokens=1_000_000)])
    return router


def warm(router: Router, model: str) -> None:
    """Its engine has answered the prompt before."""
    placement = router.place(Asks().ask(model, None)[0], avoid=frozenset(), now_s=1.0, draw=0.5)
    placement.first_token(1.1)
    placement.settle(None, 1.2)
    placement.release(1.2)


def ladders(router: Router) -> Ladders:
    file = LadderFile(
        models=MODELS,
        signal="margin",
        stage=Stage.WINDOW,
        promise=Promise(0.01, 0.95),
        evidence=Evidence(1000, "sha256:0", kept=0.5),
        cuts=tuple(Cut(rung, ANY_BUCKET, 0.5) for rung in (0, 1)),
        is_promised=True,
    )
    prices = (Price(1e-7, None, 1e-7), Price(1e-6, 1e-7, 1e-6), Price(3e-6, 5e-7, 3e-6))
    rungs = tuple(Rung(model, price) for model, price in zip(MODELS, prices, strict=True))
    return Ladders(
        router, {"auto": Served(Ladder("auto", rungs, window=Window(), file=file), HoldBack())}, clock=lambda: 2.0
    )


@pytest.mark.parametrize(("is_warm", "goes_to"), [([], "middle"), (["big"], "big"), (["big", "middle"], "middle")])
def test_a_warm_prefix_further_up_is_escalated_to_at_once(is_warm: list[str], goes_to: str) -> None:
    """Cold everywhere, or warm everywhere above: the next model; warm on the one after it alone: that one."""
    router = a_router()
    asked = Request("r", Api.CHAT, "auto", PROMPT, stream=True)
    climb = ladders(router).begin(asked, BODY, Tenant("t"), {}, Asks(), 2.0)
    assert climb.model == "small"
    for model in is_warm:
        warm(router, model)
    assert climb.rise()
    assert climb.model == goes_to
