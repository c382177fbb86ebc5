"""One request on its way up a ladder: which rung is asked next, and who judges what it says.

The spine asks for the next rung and says how it ended; the shell, which knows the body, makes the rung's request.
Decides by what it was given; awaits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gateway.cascades.model_judge import RungJudge, Standard
from gateway.cascades.plan import Plan
from gateway.cascades.record import ESCALATED, FAILED, Climbed, Step
from gateway.cascades.request_builder import Shell
from gateway.cascades.usage import Taken, end_of, usage_of
from gateway.pipeline.attempt import Leg
from routing.decision.placement import Placement
from routing.request import Request
from tenancy.tenants import Caller


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
        self._shell = shell
        self._settled = settled
        self._taken = Taken(plan)
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
        return self.plan.model(self.at)

    def ask(self) -> Request:
        """The request to the rung that it stands on; `judge` is whoever is to judge the answer."""
        plan, at, model = self.plan, self.at, self.model
        if not self._is_judged(at):
            request, self.judge = self._shell.ask(model, None)[0], None
            return request
        request, trim = self._shell.ask(model, plan.top)
        is_limited = request.max_tokens is not None
        standard = Standard(plan.ladder, plan.file, at, plan.asked, plan.draw, is_limited=is_limited)
        self.judge = RungJudge(standard, plan.hold_back, trim, may_climb=plan.share.may_escalate)
        return request

    def ended(self, leg: Leg | None, placement: Placement | None) -> None:
        """An attempt on this rung has ended; `leg` is None where the client has gone."""
        if placement is None:
            return
        judge = self.judge
        ended = end_of(leg, judge)
        held_s = leg.held_s if leg else 0.0
        self._taken.add(self.at, ended, usage_of(leg, placement), judge, held_s=held_s)
        if judge is not None and judge.verdict is not None and ended != FAILED:
            self.plan.share.take(is_escalated=ended == ESCALATED)

    def rise(self) -> bool:
        """Step up to the next rung that may answer. Returns whether there is one."""
        above = self._above(self.at)
        if not above or not self.plan.terms.climbs:
            return False
        self.at = self._choose(above, self._shell)
        return True

    def fall_back(self) -> bool:
        """This rung cannot be had: another is to answer, the next above, or unjudged the best below."""
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
        """Under overload: a cheaper rung is to answer, unjudged. Returns whether there is one."""
        below = [at for at in self.plan.rungs if at < self.at]
        if not below:
            return False
        self.at, self._is_final = below[-1], True
        return True

    def climbed(self) -> Climbed:
        """What became of it."""
        return self._taken.climbed()

    @property
    def steps(self) -> Iterable[tuple[int, Step]]:
        """The rungs that were asked so far, counted from the cheapest, and how each ended."""
        return zip(self._taken.rungs, self._taken.steps, strict=True)

    def settle(self, ending: Ending) -> None:
        """The request has ended, however it did."""
        self._settled(self, ending)
        if self._shadow is not None:
            self._shadow(ending)

    def _above(self, at: int) -> list[int]:
        return [rung for rung in self.plan.rungs if rung > at and rung not in self._lost]

    def _is_judged(self, at: int) -> bool:
        return not self._is_final and bool(self._above(at)) and self.plan.judges
