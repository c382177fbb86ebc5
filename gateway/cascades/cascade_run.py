"""One request to a cascade: the plan made beforehand, which model is asked next, and what each one took.

A `CascadeRun` leads its request through the stages of the pipeline, model by model, until one has answered well
enough; the front end, which holds the body, makes each model's request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct, structs

from cascade.calibration_file import CalibrationFile, SignalStage
from cascade.judging import AnswerJudge, HoldbackSettings, JudgingStandard, ModelJudge
from cascade.logprobs import LOGPROB_APIS, LogprobFilter
from cascade.models import Cascade
from cascade.record import (
    ESCALATED,
    FAILED,
    KEPT,
    UNJUDGED,
    CascadeResult,
    CascadeStep,
    ExplainedStep,
    answering_step_of,
)
from gateway.cascades.constraints import CascadeConstraints, EscalationLimiter
from gateway.cascades.features import CascadeRequestFeatures
from gateway.pipeline.attempt import AttemptResult, AttemptStatus, rejection_for
from gateway.pipeline.pipeline import RequestHook, RequestPipeline
from gateway.pipeline.request_context import RequestContext
from gateway.pipeline.transport import AttemptTransport
from routing.decision.placement import Placement
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Request, Usage


class CascadePlan(Struct, frozen=True):
    """Everything that was decided about a request before the first model is asked."""

    cascade: Cascade
    calibration: CalibrationFile | None
    """The calibration as corrected by shadow samples; None where there is none."""
    hold_back: HoldbackSettings
    features: CascadeRequestFeatures
    constraints: CascadeConstraints
    allowed_models: tuple[int, ...]
    """Indices of the models that can and may answer, cheapest first."""
    start_index: int
    """Index of the model to ask first."""
    api: Api
    stream: bool
    sequences: int
    """How many answers the client asks for (`n`)."""
    escalation_limiter: EscalationLimiter
    tokens: int = 0
    """Estimated prompt tokens."""
    output_tokens: int = 0
    """Expected output tokens."""
    draw: float = 0.0
    """In [0, 1), drawn for this request."""
    session: str | None = None

    def model_name(self, at: int) -> str:
        """Return the name of a model by its index."""
        return self.cascade.models[at].name

    def cost(self, at: int, usage: Usage) -> float:
        """Return the cost of this usage on a model, in the currency of the prices."""
        warm, price = usage.cached_tokens or 0, self.cascade.models[at].price
        return price.cost(
            cold_tokens=usage.prompt_tokens - warm, warm_tokens=warm, output_tokens=usage.completion_tokens
        )

    @property
    def judges_answers(self) -> bool:
        """Whether an answer can be judged that is not of the last model available."""
        if not self.constraints.may_escalate or self.sequences > 1:
            return False
        if self.stream and not self.hold_back.complete_streams:
            is_of_window = self.calibration is not None and self.calibration.stage in (
                SignalStage.WINDOW,
                SignalStage.REASONING,
            )
            return self.cascade.holdback_window is not None and is_of_window
        return self.cascade.judges_unary

    @property
    def top_logprobs(self) -> int | None:
        """Log-probabilities to request per token; None where the verdict uses no signal of them."""
        window = self.cascade.holdback_window
        needs_signal = self.calibration is not None and self.calibration.stage is not SignalStage.PROMPT
        return window.top if window and needs_signal and self.api in LOGPROB_APIS else None


class ModelRequestBuilder(Protocol):
    """Makes the request to one model out of the client's body. The front end implements it."""

    def ask(self, model: str, top: int | None) -> tuple[Request, LogprobFilter | None]:
        """Return the request to a model, which is sent from now on.

        `top`: with this many log-probabilities per token, which the `LogprobFilter` removes from the answer.
        """
        ...

    def set_judge(self, judge: AnswerJudge | None) -> None:
        """Hold the next answer back until `judge` has accepted it; None: relay it at once."""
        ...


ChooseModel = Callable[[Sequence[int], ModelRequestBuilder], int]
"""Chooses the next one of these models by its cost where it would be placed now."""


class CascadeSteps:
    """Steps of one run: every model asked, how it ended and what it took."""

    def __init__(self, plan: CascadePlan) -> None:
        self._plan = plan
        self.steps: list[CascadeStep] = []
        self.model_indices: list[int] = []
        """Model indices of the steps."""

    def add(self, at: int, result: str, usage: Usage, judge: ModelJudge | None = None, *, held_s: float = 0.0) -> None:
        """Record that a model was asked, and how that ended."""
        step = CascadeStep(
            model=self._plan.model_name(at),
            result=result,
            reason=_why(judge),
            signal=judge.signal if judge else None,
            input_tokens=usage.prompt_tokens,
            cached_input_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens,
            cost=self._plan.cost(at, usage),
            holdback_s=held_s,
        )
        if judge is not None and judge.signal_parts is not None:
            parts = {name: round(part, 4) for name, part in judge.signal_parts.items()}
            step = ExplainedStep(**structs.asdict(step), signal_parts=parts)
        self.steps.append(step)
        self.model_indices.append(at)

    def result(self) -> CascadeResult:
        """Return the record of the run so far."""
        plan, steps, models = self._plan, tuple(self.steps), self._plan.cascade.models
        answered = answering_step_of(steps)
        usage = (
            Usage(answered.input_tokens, answered.output_tokens, answered.cached_input_tokens) if answered else Usage(0)
        )
        cost = sum(step.cost for step in steps)
        return CascadeResult(
            cascade=plan.cascade.name,
            bucket=plan.features.bucket,
            first_model=plan.model_name(plan.start_index),
            steps=steps,
            skipped=tuple(model.name for at, model in enumerate(models) if at not in plan.allowed_models),
            judged=sum(step.result in (KEPT, ESCALATED) for step in steps),
            cost=cost,
            wasted_cost=cost - (answered.cost if answered else 0.0),
            wasted_tokens=sum(step.output_tokens for step in steps if step is not answered),
            cost_always_largest=plan.cost(len(models) - 1, usage),
            cost_always_first=plan.cost(0, usage),
        )


TRY_ANOTHER_MODEL = frozenset(
    {
        *(Reason.NO_POD_READY, Reason.UNKNOWN_MODEL, Reason.REGION_NOT_ALLOWED, Reason.PROVIDER_NOT_ALLOWED),
        *(Reason.OVERLOADED, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT),
        *(status.reason for status in AttemptStatus if status.reason is not None),
    }
)
"""Rejections by one model after which another one may answer."""


class CascadeRun(RequestHook):
    """The run of one request through a cascade, from the first model asked to the one that answers."""

    def __init__(
        self,
        plan: CascadePlan,
        shell: ModelRequestBuilder,
        *,
        settled: Callable[[CascadeRun, AttemptResult | None], None],
        choose: ChooseModel,
    ) -> None:
        """`settled` is called once at the end, with the result of the last attempt; None without one."""
        self._choose = choose
        self.plan = plan
        self.model_index = plan.start_index
        self.judge: ModelJudge | None = None
        self._shell = shell
        self._settled = settled
        self._taken = CascadeSteps(plan)
        self._is_final = False
        """No larger model can answer: the next answer is not judged."""
        self._lost: set[int] = set()
        self._is_closed = False

    @property
    def was_kept_for_limit(self) -> bool:
        """Whether its answer was accepted though it was not good enough: the guarantee does not cover it."""
        return self.judge is not None and self.judge.override_reason is not None

    @property
    def model(self) -> str:
        """Name of the model asked now."""
        return self.plan.model_name(self.model_index)

    def next_request(self) -> Request:
        """Return the request to the current model, and set `judge`: None where its answer is not judged."""
        plan, at, model = self.plan, self.model_index, self.model
        if not self._is_judged(at):
            request, self.judge = self._shell.ask(model, None)[0], None
            return request
        request, trim = self._shell.ask(model, plan.top_logprobs)
        standard = JudgingStandard(
            *(plan.calibration, at, plan.features.bucket),
            wants_json=plan.features.wants_json,
            schema=plan.features.schema,
            draw=plan.draw,
            is_limited=request.max_tokens is not None,
        )
        self.judge = ModelJudge(standard, plan.hold_back, trim, may_escalate=plan.escalation_limiter.may_escalate)
        return request

    def attempt_ended(self, attempt_result: AttemptResult | None, placement: Placement | None) -> None:
        """Record an attempt on the current model; `attempt_result` is None where the client has gone."""
        if placement is None:
            return
        judge = self.judge
        ended = step_outcome(attempt_result, judge)
        held_s = attempt_result.held_s if attempt_result else 0.0
        self._taken.add(self.model_index, ended, attempt_usage(attempt_result, placement), judge, held_s=held_s)
        if judge is not None and judge.verdict is not None and ended != FAILED:
            self.plan.escalation_limiter.record(is_escalated=ended == ESCALATED)

    def escalate(self) -> bool:
        """Escalate to the next model that may answer. Returns False where there is none."""
        above = self._above(self.model_index)
        if not above or not self.plan.constraints.may_escalate:
            return False
        self.model_index = self._choose(above, self._shell)
        return True

    def fall_back(self) -> bool:
        """Replace a model that is not available: by a larger one, else, unjudged, by the largest smaller one.

        Returns False where no model is left.
        """
        self._lost.add(self.model_index)
        left = [at for at in self.plan.allowed_models if at not in self._lost]
        above = [at for at in left if at > self.model_index]
        if above and (self.plan.constraints.may_escalate or not self._taken.steps):
            self.model_index = self._choose(above, self._shell)
            return True
        if not left:
            return False
        self.model_index, self._is_final = left[-1], True
        return True

    def result(self) -> CascadeResult:
        """Return the record of the run."""
        return self._taken.result()

    @property
    def steps(self) -> Iterable[tuple[int, CascadeStep]]:
        """The models asked so far, by index, and how each ended."""
        return zip(self._taken.model_indices, self._taken.steps, strict=True)

    # -- as a hook of the pipeline ---------------------------------------------------------------------------------

    async def serve(self, pipeline: RequestPipeline, context: RequestContext, transport: AttemptTransport) -> None:
        """Ask one model after the other until one has answered. Raises `RequestRejected` where none can."""
        while True:
            try:
                await self._ask_model(pipeline, context, transport)
            except RequestRejected as rejection:
                # Another model may answer, unless the client has some of this one's answer.
                if rejection.reason not in TRY_ANOTHER_MODEL or context.has_started or not self.fall_back():
                    raise
            else:
                if context.result is None or context.result.end is AttemptStatus.OK:
                    return
                if not self.escalate():
                    self.fall_back()
            context.begin_model(self.next_request())
            if context.lookup is not None:
                context.request = await context.lookup(context.request)

    async def _ask_model(self, pipeline: RequestPipeline, context: RequestContext, transport: AttemptTransport) -> None:
        """Attempt the current model until it has answered, well enough or not. Raises `RequestRejected`."""
        while True:
            placement = await pipeline.place(context)
            # What a judge has accepted is resumed unjudged, on whatever pod.
            self._shell.set_judge(None if context.cuts else self.judge)
            result: AttemptResult | None = None
            try:
                result = await pipeline.attempt(context, placement, transport)
            finally:
                self.attempt_ended(result, context.last)
            if result.end in (AttemptStatus.OK, AttemptStatus.ESCALATED):
                return
            if not pipeline.may_retry(context, result):
                raise rejection_for(result)

    def downgrade(self) -> Request | None:
        """Return the request to a smaller model, whose answer is not judged; None where there is none."""
        below = [at for at in self.plan.allowed_models if at < self.model_index]
        if not below:
            return None
        self.model_index, self._is_final = below[-1], True
        return self.next_request()

    def finish(self, context: RequestContext) -> None:
        """Report the end of the request, and add the run to its record."""
        self.close(context.result)
        context.record.cascade = self.result()

    def close(self, result: AttemptResult | None = None) -> None:
        """Settle what was reserved for the run, once: also where its request has never begun."""
        if not self._is_closed:
            self._is_closed = True
            self._settled(self, result)

    def _above(self, at: int) -> list[int]:
        return [other for other in self.plan.allowed_models if other > at and other not in self._lost]

    def _is_judged(self, at: int) -> bool:
        return not self._is_final and bool(self._above(at)) and self.plan.judges_answers


def step_outcome(attempt_result: AttemptResult | None, judge: ModelJudge | None) -> str:
    """Return `CascadeStep.result` of an attempt; `attempt_result` is None where the client has gone."""
    if attempt_result is None or attempt_result.end not in (AttemptStatus.OK, AttemptStatus.ESCALATED):
        return FAILED
    if attempt_result.end is AttemptStatus.ESCALATED:
        return ESCALATED
    return KEPT if judge is not None and judge.verdict is not None else UNJUDGED


def attempt_usage(attempt_result: AttemptResult | None, placement: Placement) -> Usage:
    """Return the usage of an attempt: as reported by the engine, else as predicted and counted here."""
    reported = attempt_result and (attempt_result.usage or attempt_result.counted)
    if reported and reported.prompt_tokens:
        return reported
    if placement.first_token_s is None and reported is None:
        return Usage(0)
    predicted = placement.predicted
    output_tokens = reported.completion_tokens if reported else 0
    return Usage(round(predicted.prompt_tokens), output_tokens, round(predicted.cached_tokens))


def _why(judge: ModelJudge | None) -> str:
    if judge is None or judge.moment is None:
        return ""
    return judge.override_reason or (", ".join(judge.faults) if judge.faults else judge.moment.value)
