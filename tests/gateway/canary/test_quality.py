"""Answers of a canary beside those of the standing pods: of whom, within which budget, and what counts as worse."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.canary.quality import CANARY as FOR_CANARY
from gateway.canary.quality import CONTROL, JUDGE, MAX_WAITING, QualitySampler
from gateway.canary.quality import STANDING as FOR_STANDING
from gateway.cascades.shadow_sampling import ShadowAnswer
from routing.canary.evidence import DifferenceEvidence
from routing.request import Api, Request, Usage
from tenancy.tenants import Caller, Tenant
from tests.gateway.canary.scene import CANARY, MODEL, STANDING, TERMS, Scene, an_end
from tests.gateway.kv_index.exchange import until

OPEN, CLOSED = Caller(Tenant("open", canary_compare=True)), Caller(Tenant("closed"))
LOWER = replace(TERMS, lower_precision=True, quality_share=0.5)
TEXTS = {FOR_STANDING: "The answer is 4.", FOR_CANARY: "The answer is 4.", CONTROL: "The answer is 4."}


class Sender:
    """Answers requests beside a client's, as pods that the router knows would."""

    body = b'{"messages": [{"role": "user", "content": "2 + 2?"}]}'

    def __init__(self, setup: Setup, request_id: str) -> None:
        self._setup = setup
        self._id = request_id

    async def send(
        self, question: bytes | None, model: str, *, pods: frozenset[str] | None = None, purpose: str = ""
    ) -> ShadowAnswer | None:
        """Answer by the purpose; each counts as a request of its own."""
        setup = self._setup
        setup.sent.append((purpose, model, pods))
        if question is not None:
            setup.questions.append(question.decode())
            return ShadowAnswer(setup.verdicts.pop(0), Usage(50, 1))
        served_by = setup.serves or (CANARY if purpose == FOR_CANARY else STANDING[0])
        setup.sampler.on_outcome(an_end(Request(f"{self._id}-{purpose}", Api.CHAT, model), served_by, 0.1))
        text = setup.texts[purpose]
        return None if text is None else ShadowAnswer(text, Usage(10, 5))


class Setup:
    """A sampler of a canary of lower precision."""

    def __init__(self, judge_model: str | None = None, draw: float = 0.4, tokens: float = 1e6) -> None:
        self.scene = Scene(terms=replace(LOWER, judge_model=judge_model, quality_tokens_per_hour=tokens))
        self.sampler = QualitySampler(
            self.scene.controller, self.scene.router, draw=lambda: draw, clock=lambda: self.scene.now_s
        )
        self.texts: dict[str, str | None] = dict(TEXTS)
        self.verdicts: list[str] = []
        self.questions: list[str] = []
        self.sent: list[tuple[str, str, frozenset[str] | None]] = []
        self.serves: str | None = None
        self.number = 0

    def choose(self, caller: Caller = OPEN, **more: object) -> Request | None:
        """The next request; None where it is not chosen."""
        self.number += 1
        request = Request(f"r{self.number}", Api.CHAT, MODEL, **more)  # type: ignore[arg-type]
        chosen = self.sampler.reserve(request, caller, lambda: Sender(self, request.id))
        return None if chosen is None else request

    async def compare(self) -> DifferenceEvidence:
        """Compare one request to the end. Returns what was found."""
        await self.scene.look()
        request = self.choose()
        assert request is not None
        self.sampler.on_outcome(an_end(request, STANDING[0], 0.1))
        task = asyncio.create_task(self.sampler.run())
        await until(lambda: not self.sampler._budget.in_flight)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self.scene.controller.comparisons.take().quality


async def test_only_of_tenants_that_have_opted_in() -> None:
    """And only for a canary that needs it, of requests with one answer."""
    setup = Setup()
    assert setup.choose() is None
    await setup.scene.look()
    assert setup.choose() is not None
    assert setup.choose(CLOSED) is None
    assert setup.choose(sequences=2) is None
    plain = Scene()
    await plain.look()
    sampler = QualitySampler(plain.controller, plain.router, draw=lambda: 0.0, clock=lambda: 0.0)
    assert sampler.reserve(Request("r", Api.CHAT, MODEL), OPEN, lambda: Sender(setup, "r")) is None


async def test_within_the_share_and_the_budget() -> None:
    """Of tokens, and of requests that wait; one without an answer gives its reservation back."""
    unlucky = Setup(draw=0.6)
    await unlucky.scene.look()
    assert unlucky.choose() is None
    poor = Setup(tokens=60.0)
    await poor.scene.look()
    assert poor.choose() is None
    setup = Setup()
    await setup.scene.look()
    closes = [
        setup.sampler.reserve(Request(f"r{number}", Api.CHAT, MODEL), OPEN, lambda: Sender(setup, "r"))
        for number in range(MAX_WAITING)
    ]
    assert setup.choose() is None
    assert closes[0] is not None
    closes[0]()
    assert setup.choose() is not None


async def test_both_sides_answer() -> None:
    """The standing pods alone, and the canary alone; no text is kept."""
    setup = Setup()
    assert await setup.compare() == DifferenceEvidence(same=1)
    assert setup.sent == [
        (FOR_STANDING, MODEL, frozenset(STANDING)),
        (FOR_CANARY, MODEL, frozenset({CANARY})),
        (CONTROL, MODEL, frozenset(STANDING)),
    ]


@pytest.mark.parametrize(
    ("canary", "control", "found"),
    [
        ("Three.", "The answer is 4.", DifferenceEvidence(worse=1)),
        ("Three.", "Maybe 7, who knows.", DifferenceEvidence(same=1)),
        ("The answer is 4.", "Maybe 7, who knows.", DifferenceEvidence(better=1)),
    ],
)
async def test_texts_that_differ_by_themselves_are_no_loss(
    canary: str, control: str, found: DifferenceEvidence
) -> None:
    """Two answers of the standing pods show how much that is."""
    setup = Setup()
    setup.texts |= {FOR_CANARY: canary, CONTROL: control}
    assert await setup.compare() == found


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        (["SECOND", "FIRST"], DifferenceEvidence(worse=1)),
        (["FIRST", "SECOND"], DifferenceEvidence(better=1)),
        (["FIRST", "FIRST"], DifferenceEvidence(same=1)),
        (["SAME", "SAME"], DifferenceEvidence(same=1)),
        (["?", "SAME"], DifferenceEvidence()),
    ],
)
async def test_a_judge_compares_in_both_orders(verdicts: list[str], found: DifferenceEvidence) -> None:
    """The canary's answer is the first one at first; verdicts that follow the order count for nothing."""
    setup = Setup(judge_model="big")
    setup.texts[FOR_CANARY], setup.verdicts = "Three.", list(verdicts)
    assert await setup.compare() == found
    assert [(purpose, model) for purpose, model, _ in setup.sent[2:]] == [(JUDGE, "big")] * 2
    assert setup.questions[0].index("Three.") < setup.questions[0].index("The answer is 4.")
    assert "2 + 2?" in setup.questions[0]


async def test_an_answer_that_no_pod_on_trial_had_a_part_in_is_not_compared() -> None:
    """A decode engine may have done it all."""
    setup = Setup()
    setup.serves = STANDING[0]
    assert await setup.compare() == DifferenceEvidence()
    setup = Setup()
    setup.texts[FOR_CANARY] = None
    assert await setup.compare() == DifferenceEvidence()
