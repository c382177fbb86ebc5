"""One request on its way up a ladder: which rung is asked next, who judges it, and what each of them took.

The spine asks for the next rung and says how it ended; the shell, which knows the body, makes the rung's request.
Decides by what it was given; awaits nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from cascade.ladder import Ladder
from cascade.ladder_file import LadderFile, Stage
from gateway.ladders.asked import Asked
from gateway.ladders.climbed import ESCALATED, FAILED, KEPT, UNJUDGED, Climbed, Step, answered_of
from gateway.ladders.judging import HoldBack
from gateway.ladders.rung_judge import RungJudge, Standard
from gateway.ladders.shares import Share
from gateway.ladders.trimming import WITH_LOGPROBS, Trim
from gateway.ladders.words import Terms
from gateway.spine.carrier import Leg, LegEnd
from routing.placement import Placement, Usage
from routing.request import Api, Request
from tenancy.tenants import Caller


class Shell(Protocol):
    """Makes a rung's request of the client's body; what is carried from then on asks for that one."""

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        """The request to a model. `top`: with so many log-probabilities for each token, which the `Trim` takes out."""
        ...


class Plan(Struct, frozen=True):
    """What was decided of a request before anything was asked."""

    ladder: Ladder
    file: LadderFile | None
    """As shadow samples have corrected it."""
    hold_back: HoldBack
    asked: Asked
    terms: Terms
    rungs: tuple[int, ...]
    """Those that can and may answer, the cheapest first."""
    start: int
    api: Api
    stream: bool
    sequences: int
    share: Share
    tokens: int = 0
    """About so many in its prompt."""
    output_tokens: int = 0
    """And in its answer."""
    draw: float = 0.0
    """In [0, 1), drawn for this request."""
    session: str | None = None


class Ending(Protocol):
    """How a request has ended."""

    @property
    def leg(self) -> Leg | None: ...
    @property
    def caller(self) -> Caller: ...


def ignore(_climb: Climb, _ending: Ending) -> None:
    """Nobody wants to know."""


class Climb:
    """From the first rung to the one that answers."""

    def __init__(self, plan: Plan, shell: Shell, *, settled: Callable[[Climb, Ending], None] = ignore) -> None:
        """`settled` is told of the end, whatever it is."""
        self.plan = plan
        self.at = plan.start
        self.judge: RungJudge | None = None
        self._shell = shell
        self._settled = settled
        self._steps: list[Step] = []
        self._is_final = False
        """Nobody above can answer: whoever does is not judged."""
        self._lost: set[int] = set()
        self._shadow: Callable[[Ending], None] | None = None
        self.reserved: tuple[float, float] | None = None
        """Money and tokens set aside for its shadow."""

    def wants_shadow(self, shadow: Callable[[Ending], None]) -> None:
        """It is a sample: `shadow` is called when it has ended."""
        self._shadow = shadow

    @property
    def kept_all_the_same(self) -> bool:
        """Whether its answer was kept though it was not good enough: the promise does not cover it."""
        return self.judge is not None and self.judge.kept_for is not None

    @property
    def model(self) -> str:
        return self.plan.ladder.rungs[self.at].model

    def ask(self) -> Request:
        """The request to the rung that it stands on; `judge` is whoever is to judge the answer."""
        self.judge = None
        if not self._judges():
            return self._shell.ask(self.model, None)[0]
        plan = self.plan
        window = plan.ladder.window
        needs_signal = plan.file is not None and plan.file.stage is not Stage.PROMPT
        top = window.top if window and needs_signal and plan.api in WITH_LOGPROBS else None
        request, trim = self._shell.ask(self.model, top)
        standard = Standard(
            plan.ladder, plan.file, self.at, plan.asked, plan.draw, is_limited=request.max_tokens is not None
        )
        self.judge = RungJudge(standard, plan.hold_back, trim, may_climb=plan.share.may_escalate)
        return request

    def ended(self, leg: Leg | None, placement: Placement | None) -> None:
        """An attempt on this rung has ended; `leg` is None where the client has gone."""
        if placement is None:
            return
        judge, usage = self.judge, self._usage(leg, placement)
        ended = _ended(leg, judge)
        self._steps.append(
            Step(
                model=self.model,
                ended=ended,
                why=_why(judge),
                signal=judge.signal if judge else None,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens or 0,
                output_tokens=usage.completion_tokens,
                cost=self._cost(self.at, usage),
                held_s=leg.held_s if leg else 0.0,
            )
        )
        if judge is not None and judge.verdict is not None:
            self.plan.share.take(is_escalated=ended == ESCALATED)

    def rise(self) -> bool:
        """Step up to the next rung that may answer. Returns whether there is one."""
        above = [at for at in self.plan.rungs if at > self.at and at not in self._lost]
        if not above or not self.plan.terms.climbs:
            return False
        self.at = above[0]
        return True

    def fall_back(self) -> bool:
        """This rung cannot be had: another is to answer, the next above, or unjudged the best below."""
        self._lost.add(self.at)
        left = [at for at in self.plan.rungs if at not in self._lost]
        above = [at for at in left if at > self.at]
        if above and (self.plan.terms.climbs or not self._steps):
            self.at = above[0]
            return True
        if not left:
            return False
        self.at, self._is_final = left[-1], True
        return True

    def lower(self) -> bool:
        """Under overload: a cheaper rung is to answer, unjudged. Returns whether there is one."""
        below = [at for at in self.plan.rungs if at < self.at]
        if not below:
            return False
        self.at, self._is_final = below[-1], True
        return True

    def climbed(self) -> Climbed:
        """What became of it."""
        plan, rungs, models = self.plan, tuple(self._steps), self.plan.ladder.rungs
        answered = answered_of(rungs)
        usage = Usage(answered.prompt_tokens, answered.output_tokens, answered.cached_tokens) if answered else Usage(0)
        cost = sum(step.cost for step in rungs)
        return Climbed(
            ladder=plan.ladder.name,
            bucket=plan.asked.bucket,
            started=models[plan.start].model,
            rungs=rungs,
            skipped=tuple(rung.model for at, rung in enumerate(models) if at not in plan.rungs),
            judged=sum(step.ended in (KEPT, ESCALATED) for step in rungs),
            cost=cost,
            wasted_cost=cost - (answered.cost if answered else 0.0),
            wasted_tokens=sum(step.output_tokens for step in rungs if step is not answered),
            cost_always_top=self._cost(len(models) - 1, usage),
            cost_always_first=self._cost(0, usage),
        )

    def settle(self, ending: Ending) -> None:
        """The request has ended, however it did."""
        self._settled(self, ending)
        if self._shadow is not None:
            self._shadow(ending)

    def _judges(self) -> bool:
        plan = self.plan
        has_above = any(at > self.at and at not in self._lost for at in plan.rungs)
        if self._is_final or not has_above or not plan.terms.climbs or plan.sequences > 1:
            return False
        if plan.stream and not plan.hold_back.whole:
            is_of_window = plan.file is not None and plan.file.stage in (Stage.WINDOW, Stage.REASONING)
            return plan.ladder.window is not None and is_of_window
        return plan.ladder.whole

    def _usage(self, leg: Leg | None, placement: Placement) -> Usage:
        """What the attempt took: by the engine's word, or by what was foretold and counted."""
        told = leg and (leg.usage or leg.counted)
        if told and told.prompt_tokens:
            return told
        predicted = placement.predicted
        if placement.first_token_s is None and told is None:
            return Usage(0)
        output = told.completion_tokens if told else 0
        return Usage(round(predicted.prompt_tokens), output, round(predicted.warm_tokens))

    def _cost(self, at: int, usage: Usage) -> float:
        warm = usage.cached_tokens or 0
        price = self.plan.ladder.rungs[at].price
        return price.of(cold_tokens=usage.prompt_tokens - warm, warm_tokens=warm, output_tokens=usage.completion_tokens)


def _ended(leg: Leg | None, judge: RungJudge | None) -> str:
    if leg is None or leg.end not in (LegEnd.ANSWERED, LegEnd.UNCONVINCING):
        return FAILED
    if leg.end is LegEnd.UNCONVINCING:
        return ESCALATED
    return KEPT if judge is not None and judge.verdict is not None else UNJUDGED


def _why(judge: RungJudge | None) -> str:
    if judge is None or judge.moment is None:
        return ""
    return judge.kept_for or (", ".join(judge.faults) if judge.faults else judge.moment.value)
