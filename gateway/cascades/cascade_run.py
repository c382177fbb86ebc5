"""One request to a cascade: the plan made beforehand, which model is asked next, and what each one took.

A `Climb` leads its request through the stages of the pipeline, model by model, until one has answered well enough; the
front end, which holds the body, makes each model's request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from cascade.calibration_file import LadderFile, Stage
from cascade.judging import HoldBack, Judge, JudgingStandard, ModelJudge
from cascade.logprobs import WITH_LOGPROBS, Trim
from cascade.models import Ladder
from cascade.record import ESCALATED, FAILED, KEPT, UNJUDGED, Climbed, Step, answered_of
from gateway.cascades.constraints import Share, Terms
from gateway.cascades.features import Asked
from gateway.pipeline.attempt import Leg, LegEnd, refusal_for
from gateway.pipeline.pipeline import Passage, RequestHook
from gateway.pipeline.request_context import RequestContext
from gateway.pipeline.transport import Carrier
from routing.decision.placement import Placement
from routing.rejection import Reason, Refused
from routing.request import Api, Request, Usage


class Plan(Struct, frozen=True):
    """Everything that was decided about a request before the first model is asked."""

    ladder: Ladder
    file: LadderFile | None
    """The calibration as corrected by shadow samples; None where there is none."""
    hold_back: HoldBack
    asked: Asked
    terms: Terms
    rungs: tuple[int, ...]
    """Indices of the models that can and may answer, cheapest first."""
    start: int
    """Index of the model to ask first."""
    api: Api
    stream: bool
    sequences: int
    """How many answers the client asks for (`n`)."""
    share: Share
    tokens: int = 0
    """Estimated prompt tokens."""
    output_tokens: int = 0
    """Expected output tokens."""
    draw: float = 0.0
    """In [0, 1), drawn for this request."""
    session: str | None = None

    def model(self, at: int) -> str:
        """Return the name of a model by its index."""
        return self.ladder.rungs[at].model

    def cost(self, at: int, usage: Usage) -> float:
        """Return the cost of this usage on a model, in the currency of the prices."""
        warm, price = usage.cached_tokens or 0, self.ladder.rungs[at].price
        return price.of(cold_tokens=usage.prompt_tokens - warm, warm_tokens=warm, output_tokens=usage.completion_tokens)

    @property
    def judges(self) -> bool:
        """Whether an answer can be judged that is not of the last model available."""
        if not self.terms.climbs or self.sequences > 1:
            return False
        if self.stream and not self.hold_back.whole:
            is_of_window = self.file is not None and self.file.stage in (Stage.WINDOW, Stage.REASONING)
            return self.ladder.window is not None and is_of_window
        return self.ladder.whole

    @property
    def top(self) -> int | None:
        """Log-probabilities to request per token; None where the verdict uses no signal of them."""
        window = self.ladder.window
        needs_signal = self.file is not None and self.file.stage is not Stage.PROMPT
        return window.top if window and needs_signal and self.api in WITH_LOGPROBS else None


class Shell(Protocol):
    """Makes the request to one model out of the client's body. The front end implements it."""

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        """Return the request to a model, which is sent from now on.

        `top`: with this many log-probabilities per token, which the `Trim` removes from the answer.
        """
        ...

    def judge(self, judge: Judge | None) -> None:
        """Hold the next answer back until `judge` has accepted it; None: relay it at once."""
        ...


Choose = Callable[[Sequence[int], Shell], int]
"""Chooses the next one of these models by its cost where it would be placed now."""


class Taken:
    """Steps of one run: every model asked, how it ended and what it took."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.steps: list[Step] = []
        self.rungs: list[int] = []
        """Model indices of the steps."""

    def add(self, at: int, ended: str, usage: Usage, judge: ModelJudge | None = None, *, held_s: float = 0.0) -> None:
        """Record that a model was asked, and how that ended."""
        step = Step(
            model=self._plan.model(at),
            ended=ended,
            why=_why(judge),
            signal=judge.signal if judge else None,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens,
            cost=self._plan.cost(at, usage),
            held_s=held_s,
        )
        self.steps.append(step)
        self.rungs.append(at)

    def climbed(self) -> Climbed:
        """Return the record of the run so far."""
        plan, steps, models = self._plan, tuple(self.steps), self._plan.ladder.rungs
        answered = answered_of(steps)
        usage = Usage(answered.prompt_tokens, answered.output_tokens, answered.cached_tokens) if answered else Usage(0)
        cost = sum(step.cost for step in steps)
        return Climbed(
            ladder=plan.ladder.name,
            bucket=plan.asked.bucket,
            started=plan.model(plan.start),
            rungs=steps,
            skipped=tuple(model.model for at, model in enumerate(models) if at not in plan.rungs),
            judged=sum(step.ended in (KEPT, ESCALATED) for step in steps),
            cost=cost,
            wasted_cost=cost - (answered.cost if answered else 0.0),
            wasted_tokens=sum(step.output_tokens for step in steps if step is not answered),
            cost_always_top=plan.cost(len(models) - 1, usage),
            cost_always_first=plan.cost(0, usage),
        )


ANOTHER_MODEL = frozenset(
    {
        *(Reason.NO_POD_READY, Reason.UNKNOWN_MODEL, Reason.REGION_NOT_ALLOWED),
        *(Reason.OVERLOADED, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT),
        *(end.reason for end in LegEnd if end.reason is not None),
    }
)
"""Rejections by one model after which another one may answer."""


class Climb(RequestHook):
    """The run of one request through a cascade, from the first model asked to the one that answers."""

    def __init__(
        self,
        plan: Plan,
        shell: Shell,
        *,
        settled: Callable[[Climb, Leg | None], None],
        choose: Choose,
    ) -> None:
        """`settled` is called once at the end, with the result of the last attempt; None without one."""
        self._choose = choose
        self.plan = plan
        self.at = plan.start
        self.judge: ModelJudge | None = None
        self._shell = shell
        self._settled = settled
        self._taken = Taken(plan)
        self._is_final = False
        """No larger model can answer: the next answer is not judged."""
        self._lost: set[int] = set()

    @property
    def kept_all_the_same(self) -> bool:
        """Whether its answer was accepted though it was not good enough: the guarantee does not cover it."""
        return self.judge is not None and self.judge.kept_for is not None

    @property
    def model(self) -> str:
        """Name of the model asked now."""
        return self.plan.model(self.at)

    def ask(self) -> Request:
        """Return the request to the current model, and set `judge`: None where its answer is not judged."""
        plan, at, model = self.plan, self.at, self.model
        if not self._is_judged(at):
            request, self.judge = self._shell.ask(model, None)[0], None
            return request
        request, trim = self._shell.ask(model, plan.top)
        standard = JudgingStandard(
            *(plan.file, at, plan.asked.bucket),
            wants_json=plan.asked.wants_json,
            schema=plan.asked.schema,
            draw=plan.draw,
            is_limited=request.max_tokens is not None,
        )
        self.judge = ModelJudge(standard, plan.hold_back, trim, may_escalate=plan.share.may_escalate)
        return request

    def ended(self, leg: Leg | None, placement: Placement | None) -> None:
        """Record an attempt on the current model; `leg` is None where the client has gone."""
        if placement is None:
            return
        judge = self.judge
        ended = end_of(leg, judge)
        held_s = leg.held_s if leg else 0.0
        self._taken.add(self.at, ended, usage_of(leg, placement), judge, held_s=held_s)
        if judge is not None and judge.verdict is not None and ended != FAILED:
            self.plan.share.take(is_escalated=ended == ESCALATED)

    def rise(self) -> bool:
        """Escalate to the next model that may answer. Returns False where there is none."""
        above = self._above(self.at)
        if not above or not self.plan.terms.climbs:
            return False
        self.at = self._choose(above, self._shell)
        return True

    def fall_back(self) -> bool:
        """Replace a model that is not available: by a larger one, else, unjudged, by the largest smaller one.

        Returns False where no model is left.
        """
        self._lost.add(self.at)
        left = [at for at in self.plan.rungs if at not in self._lost]
        above = [at for at in left if at > self.at]
        if above and (self.plan.terms.climbs or not self._taken.steps):
            self.at = self._choose(above, self._shell)
            return True
        if not left:
            return False
        self.at, self._is_final = left[-1], True
        return True

    def lower(self) -> bool:
        """Under overload: let a smaller model answer, unjudged. Returns False where there is none."""
        below = [at for at in self.plan.rungs if at < self.at]
        if not below:
            return False
        self.at, self._is_final = below[-1], True
        return True

    def climbed(self) -> Climbed:
        """Return the record of the run."""
        return self._taken.climbed()

    @property
    def steps(self) -> Iterable[tuple[int, Step]]:
        """The models asked so far, by index, and how each ended."""
        return zip(self._taken.rungs, self._taken.steps, strict=True)

    # -- as a hook of the pipeline ---------------------------------------------------------------------------------

    async def serve(self, passage: Passage, context: RequestContext, carrier: Carrier) -> None:
        """Ask one model after the other until one has answered. Raises `Refused` where none can."""
        while True:
            try:
                await self._ask_model(passage, context, carrier)
            except Refused as refusal:
                # Another model may answer, unless the client has some of this one's answer.
                if refusal.reason not in ANOTHER_MODEL or context.has_begun or not self.fall_back():
                    raise
            else:
                if context.leg is None or context.leg.end is LegEnd.ANSWERED:
                    return
                if not self.rise():
                    self.fall_back()
            context.begin_model(self.ask())
            if context.look is not None:
                context.request = await context.look(context.request)

    async def _ask_model(self, passage: Passage, context: RequestContext, carrier: Carrier) -> None:
        """Attempt the current model until it has answered, well enough or not. Raises `Refused` where it cannot."""
        while True:
            placement = await passage.place(context)
            # What a judge has accepted is resumed unjudged, on whatever pod.
            self._shell.judge(None if context.cuts else self.judge)
            leg: Leg | None = None
            try:
                leg = await passage.attempt(context, placement, carrier)
            finally:
                self.ended(leg, context.last)
            if leg.end in (LegEnd.ANSWERED, LegEnd.UNCONVINCING):
                return
            if not passage.may_try_again(context, leg):
                raise refusal_for(leg)

    def step_down(self) -> Request | None:
        """Return the request to a smaller model, whose answer is not judged; None where there is none."""
        return self.ask() if self.lower() else None

    def finish(self, context: RequestContext) -> None:
        """Report the end of the request, and add the run to its record."""
        self._settled(self, context.leg)
        context.record.climbed = self.climbed()

    def _above(self, at: int) -> list[int]:
        return [other for other in self.plan.rungs if other > at and other not in self._lost]

    def _is_judged(self, at: int) -> bool:
        return not self._is_final and bool(self._above(at)) and self.plan.judges


def end_of(leg: Leg | None, judge: ModelJudge | None) -> str:
    """Return `Step.ended` of an attempt; `leg` is None where the client has gone."""
    if leg is None or leg.end not in (LegEnd.ANSWERED, LegEnd.UNCONVINCING):
        return FAILED
    if leg.end is LegEnd.UNCONVINCING:
        return ESCALATED
    return KEPT if judge is not None and judge.verdict is not None else UNJUDGED


def usage_of(leg: Leg | None, placement: Placement) -> Usage:
    """Return the usage of an attempt: as reported by the engine, else as predicted and counted here."""
    reported = leg and (leg.usage or leg.counted)
    if reported and reported.prompt_tokens:
        return reported
    if placement.first_token_s is None and reported is None:
        return Usage(0)
    predicted = placement.predicted
    output_tokens = reported.completion_tokens if reported else 0
    return Usage(round(predicted.prompt_tokens), output_tokens, round(predicted.warm_tokens))


def _why(judge: ModelJudge | None) -> str:
    if judge is None or judge.moment is None:
        return ""
    return judge.kept_for or (", ".join(judge.faults) if judge.faults else judge.moment.value)
