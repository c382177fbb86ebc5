"""One request on its way up a ladder: which rung is asked next, who judges it, and what each of them took.

The spine asks for the next rung and says how it ended; the shell, which knows the body, makes the rung's request.
Decides by what it was given; awaits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from cascade.ladder import Ladder
from cascade.ladder_file import LadderFile, Stage
from gateway.ladders.ahead import Ahead
from gateway.ladders.asked import Asked
from gateway.ladders.climbed import ESCALATED, FAILED, GIVEN_UP, KEPT, UNJUDGED, Climbed, Step, answered_of
from gateway.ladders.judging import Hedge, HoldBack
from gateway.ladders.rung_judge import RungJudge, Standard
from gateway.ladders.shares import Share
from gateway.ladders.trimming import WITH_LOGPROBS, Trim
from gateway.ladders.words import Terms
from gateway.spine.carrier import Beside, Leg, LegEnd
from routing.placement import Placement, Usage
from routing.request import Api, Request
from tenancy.tenants import Caller


class Shell(Protocol):
    """Makes a rung's request of the client's body; what is carried from then on asks for that one."""

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        """The request to a model. `top`: with so many log-probabilities for each token, which the `Trim` takes out."""
        ...

    def beside(self) -> tuple[Shell, Beside] | None:
        """The same for a second carrier that stands beside the first; None where there can be none."""
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


Choose = Callable[[Sequence[int], Shell], int]
"""Which of these rungs is to be next, by what they would cost where they would be placed now."""


def lowest(above: Sequence[int], _shell: Shell) -> int:
    return above[0]


def ignore(_climb: Climb, _ending: Ending) -> None:
    """Nobody wants to know."""


class Climb:
    """From the first rung to the one that answers."""

    def __init__(
        self,
        plan: Plan,
        shell: Shell,
        *,
        settled: Callable[[Climb, Ending], None] = ignore,
        choose: Choose = lowest,
    ) -> None:
        """`settled` is told of the end, whatever it is."""
        self._choose = choose
        self.plan = plan
        self.at = plan.start
        self.judge: RungJudge | None = None
        self.hedge: Hedge | None = None
        """Who begins the next rung early, where that may be."""
        self._shell = shell
        self._settled = settled
        self._steps: list[Step] = []
        self._is_final = False
        """Nobody above can answer: whoever does is not judged."""
        self._lost: set[int] = set()
        self._begun_at: int | None = None
        """The rung that was begun early, and perhaps given up."""
        self._hedged_at: int | None = None
        """The rung whose answer under way was begun so."""
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
        request, self.judge = self._ask(self.at, self._shell, hedge=self._hedge)
        return request

    def ahead(self) -> Ahead | None:
        """The request to the next rung, while this one's answer is in doubt; None where there can be none."""
        above = self._above(self.at)
        beside = self._shell.beside() if above else None
        if beside is None:
            return None
        shell, carrier = beside
        self._begun_at = at = self._choose(above, shell)
        request, judge = self._ask(at, shell)
        return Ahead(at, request, judge, shell, carrier)

    def adopt(self, ahead: Ahead) -> None:
        """What was begun early is this rung's attempt, and its shell asks from here on."""
        self.judge, self._shell, self._hedged_at = ahead.judge, ahead.shell, ahead.at

    def gave_up(self, ahead: Ahead, placement: Placement | None) -> None:
        """What was begun early is not needed. Its prompt counts as computed: nobody says how much of it was."""
        if placement is None:
            return
        predicted = placement.predicted
        usage = Usage(round(predicted.prompt_tokens), ahead.carrier.events, round(predicted.warm_tokens))
        self._steps.append(self._told(ahead.at, GIVEN_UP, usage, hedged=True))

    def ended(self, leg: Leg | None, placement: Placement | None) -> None:
        """An attempt on this rung has ended; `leg` is None where the client has gone."""
        if placement is None:
            return
        judge, usage = self.judge, self._usage(leg, placement)
        ended, hedged = _ended(leg, judge), self._hedged_at == self.at
        self._steps.append(self._told(self.at, ended, usage, judge, held_s=leg.held_s if leg else 0.0, hedged=hedged))
        self._hedged_at = None
        if judge is not None and judge.verdict is not None and ended != FAILED:
            self.plan.share.take(is_escalated=ended == ESCALATED)

    def rise(self) -> bool:
        """Step up to the next rung that may answer. Returns whether there is one."""
        above = self._above(self.at)
        if not above or not self.plan.terms.climbs:
            return False
        self.at = self._next(above)
        return True

    def fall_back(self) -> bool:
        """This rung cannot be had: another is to answer, the next above, or unjudged the best below."""
        self._lost.add(self.at)
        left = [at for at in self.plan.rungs if at not in self._lost]
        above = [at for at in left if at > self.at]
        if above and (self.plan.terms.climbs or not self._steps):
            self.at = self._next(above)
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

    def _next(self, above: Sequence[int]) -> int:
        begun = self._begun_at
        return begun if begun is not None and begun in above else self._choose(above, self._shell)

    def _above(self, at: int) -> list[int]:
        return [rung for rung in self.plan.rungs if rung > at and rung not in self._lost]

    def _ask(
        self, at: int, shell: Shell, *, hedge: Callable[[], Hedge | None] | None = None
    ) -> tuple[Request, RungJudge | None]:
        plan, model = self.plan, self.plan.ladder.rungs[at].model
        if not self._judges(at):
            return shell.ask(model, None)[0], None
        window = plan.ladder.window
        needs_signal = plan.file is not None and plan.file.stage is not Stage.PROMPT
        top = window.top if window and needs_signal and plan.api in WITH_LOGPROBS else None
        request, trim = shell.ask(model, top)
        standard = Standard(
            plan.ladder, plan.file, at, plan.asked, plan.draw, is_limited=request.max_tokens is not None
        )
        return request, RungJudge(
            standard, plan.hold_back, trim, may_climb=plan.share.may_escalate, hedge=hedge or _nobody
        )

    def _hedge(self) -> Hedge | None:
        """Asked for when it is wanted: the judge of the first rung is there before whoever begins the next one."""
        return self.hedge

    def _told(
        self,
        at: int,
        ended: str,
        usage: Usage,
        judge: RungJudge | None = None,
        *,
        held_s: float = 0.0,
        hedged: bool = False,
    ) -> Step:
        return Step(
            model=self.plan.ladder.rungs[at].model,
            ended=ended,
            why=_why(judge),
            signal=judge.signal if judge else None,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens,
            cost=self._cost(at, usage),
            held_s=held_s,
            hedged=hedged,
        )

    def _judges(self, at: int) -> bool:
        plan = self.plan
        if self._is_final or not self._above(at) or not plan.terms.climbs or plan.sequences > 1:
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


def _nobody() -> Hedge | None:
    """No rung is begun early for an answer that is itself early, or the last."""
    return None
