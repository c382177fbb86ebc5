"""Compares answers of a canary with answers of the standing pods to the same request, of tenants that have opted in.

Needed before a canary of lower precision may be promoted. Runs after the client has its answer, as internal requests of
its tenant at the lowest priority, one request at a time within a budget of tokens. Keeps no text. A judge model is
asked in both orders; without one, texts are compared, and two answers of the standing pods with each other: what they
differ by themselves does not count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cascade.answer_comparison import (
    ComparisonVerdict,
    answers_agree,
    comparison_prompt,
    outcome_of_orders,
    read_comparison,
)
from cascade.shadow_budget import ShadowBudget
from gateway.canary.controller import CanaryController
from gateway.cascades.features import estimated_tokens, last_text
from gateway.cascades.shadow_sampling import ShadowAnswer
from gateway.pipeline.record import Outcome
from gateway.runtime.guard import report_exception, restarted
from routing.decision.router import Router
from routing.request import Request
from tenancy.tenants import Caller

MAX_WAITING = 8
"""Requests that are kept to be compared."""

STANDING, CONTROL, CANARY, JUDGE = "canary-standing", "canary-control", "canary-answer", "canary-judge"
"""Ends of the ids of internal requests."""


class InternalSender(Protocol):
    """Sends requests beside one of a client (`gateway/server/internal_request.py`)."""

    body: bytes
    """As the client sent it."""

    async def send(
        self, question: bytes | None, model: str, *, pods: frozenset[str] | None = None, purpose: str = ""
    ) -> ShadowAnswer | None:
        """Send the client's own body (None) or a question, to some pods only. Returns None without an answer."""
        ...


@dataclass(frozen=True, slots=True)
class QualitySample:
    """A request that was chosen; it holds its reservation until it is compared or has failed."""

    request: Request
    internal: InternalSender
    reserved: float
    """Tokens."""


class QualitySampler:
    """One per gateway process with a canary. `run` compares."""

    def __init__(
        self, controller: CanaryController, router: Router, *, draw: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        terms = controller.rollout.terms
        self._controller = controller
        self._router = router
        self._fleet = router.fleet
        self._draw = draw
        self._clock = clock
        self._budget = ShadowBudget(terms.quality_share, per_hour=terms.quality_tokens_per_hour, at_once=MAX_WAITING)
        self._begun: dict[str, QualitySample] = {}
        """Requests that clients wait for, by id."""
        self._answered: deque[QualitySample] = deque()
        self._wakes = asyncio.Event()
        self._expected: str | None = None
        """Id of the request for the canary's answer, while it is under way."""
        self._is_confirmed = False
        """Whether a pod on trial had a part in it."""

    def reserve(
        self, request: Request, caller: Caller, internal: Callable[[], InternalSender]
    ) -> Callable[[], None] | None:
        """Choose a request that is about to be placed, if its answer is to be compared.

        Returns what is to be called when its task has ended; None where it is not chosen.
        """
        if not caller.tenant.canary_compare or not self._controller.wants_quality:
            return None
        is_comparable = request.api.generates and request.sequences == 1 and request.continues is None
        if not is_comparable or not self._members_of(request):
            return None
        answers = 2 if self._controller.rollout.terms.judge_model is None else 4
        size_per_token = self._router.counters[request.model].size_per_token
        tokens = answers * (estimated_tokens(request, size_per_token) + request.expected_output_tokens)
        if not self._budget.reserve(self._draw(), tokens, self._clock()):
            return None
        self._begun[request.id] = QualitySample(request, internal(), tokens)
        return lambda: self._forget(request.id)

    def on_outcome(self, outcome: Outcome) -> None:
        """Compare a chosen request once its client has its answer; let it go where there was none."""
        if outcome.id == self._expected:
            on_trial = {pod.url for pod in self._controller.rollout.members(self._fleet.pods)}
            engines = [name for each in outcome.attempts for name in (each.engine, each.prefill_engine) if name]
            self._is_confirmed = any(name.partition("#")[0] in on_trial for name in engines)
        if outcome.status == 200 and (sample := self._begun.pop(outcome.id, None)) is not None:
            self._answered.append(sample)
            self._wakes.set()

    def _forget(self, request_id: str) -> None:
        """Let a request go that has ended without an answer."""
        if (sample := self._begun.pop(request_id, None)) is not None:
            self._budget.release(sample.reserved, 0.0)

    @restarted("canary quality")
    async def run(self) -> None:
        """Compare what was chosen, one request after the other, until cancelled."""
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            while self._answered:
                sample, used = self._answered.popleft(), [0]
                try:
                    await self._compare(sample, used)
                except Exception as error:  # noqa: BLE001 - reported; one request must not end the comparison of all
                    report_exception("canary quality", error)
                finally:
                    self._budget.release(sample.reserved, used[0])

    async def _compare(self, sample: QualitySample, used: list[int]) -> None:
        """Compare one request; adds the tokens that it takes to `used`."""
        request, judge_model = sample.request, self._controller.rollout.terms.judge_model
        on_trial = self._members_of(request)
        ready = self._fleet.serving(request.model, request.regions)
        standing = frozenset(pod.url for pod in ready) - on_trial
        if not on_trial or not standing:
            return
        answers = _Answers(sample, used)
        ours = await answers.answer(STANDING, standing)
        if ours is None:
            return
        replaced = self._controller.rollout.replaced(self._fleet, request)
        self._expected, self._is_confirmed = f"{request.id}-{CANARY}", False
        theirs = await answers.answer(CANARY, (standing | on_trial) - replaced)
        self._expected = None
        if theirs is None or not self._is_confirmed:
            return
        if answers_agree(ours, theirs):
            outcome: int | None = 0
        elif judge_model is not None:
            outcome = await answers.judged(judge_model, theirs, ours)
        else:
            outcome = 1
        if judge_model is None and outcome is not None:
            again = await answers.answer(CONTROL, standing)
            if again is None:
                return
            outcome -= not answers_agree(ours, again)
        if outcome is not None:
            self._controller.comparisons.add_quality(outcome)

    def _members_of(self, request: Request) -> frozenset[str]:
        ready = self._fleet.serving(request.model, request.regions)
        return frozenset(pod.url for pod in self._controller.rollout.members(ready))


class _Answers:
    """Answers to one request, and what they take."""

    def __init__(self, sample: QualitySample, used: list[int]) -> None:
        self._sample = sample
        self._used = used

    async def answer(self, purpose: str, pods: frozenset[str]) -> str | None:
        """Return the text of these pods' answer; None where there is none."""
        return self._text(
            await self._sample.internal.send(None, self._sample.request.model, pods=pods, purpose=purpose)
        )

    async def judged(self, judge_model: str, theirs: str, ours: str) -> int | None:
        """Return 1 where the canary's answer is worse by the judge, -1 better, 0 alike; None without a verdict."""
        question, verdicts = last_text(self._sample.internal.body), list[ComparisonVerdict | None]()
        for first, second in ((theirs, ours), (ours, theirs)):
            prompt = comparison_prompt(question, first, second).encode()
            text = self._text(await self._sample.internal.send(prompt, judge_model, purpose=JUDGE))
            verdicts.append(None if text is None else read_comparison(text))
        return outcome_of_orders(verdicts[0], verdicts[1])

    def _text(self, answer: ShadowAnswer | None) -> str | None:
        if answer is None:
            return None
        self._used[0] += answer.usage.prompt_tokens + answer.usage.completion_tokens
        return answer.text
