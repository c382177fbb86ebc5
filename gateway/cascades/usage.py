"""What the rungs of one climb took, and what that makes of it in all."""

from __future__ import annotations

from gateway.cascades.model_judge import RungJudge
from gateway.cascades.plan import Plan
from gateway.cascades.record import ESCALATED, FAILED, KEPT, UNJUDGED, Climbed, Step, answered_of
from gateway.pipeline.attempt import Leg, LegEnd
from routing.decision.placement import Placement
from routing.request import Usage


class Taken:
    """Of one climb."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.steps: list[Step] = []
        self.rungs: list[int] = []
        """Of the steps, counted from the cheapest."""

    def add(
        self,
        at: int,
        ended: str,
        usage: Usage,
        judge: RungJudge | None = None,
        *,
        held_s: float = 0.0,
    ) -> None:
        """A rung, counted from the cheapest, has been asked, and has ended so."""
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
        """All of it."""
        plan, steps, models = self._plan, tuple(self.steps), self._plan.ladder.rungs
        answered = answered_of(steps)
        usage = Usage(answered.prompt_tokens, answered.output_tokens, answered.cached_tokens) if answered else Usage(0)
        cost = sum(step.cost for step in steps)
        return Climbed(
            ladder=plan.ladder.name,
            bucket=plan.asked.bucket,
            started=plan.model(plan.start),
            rungs=steps,
            skipped=tuple(rung.model for at, rung in enumerate(models) if at not in plan.rungs),
            judged=sum(step.ended in (KEPT, ESCALATED) for step in steps),
            cost=cost,
            wasted_cost=cost - (answered.cost if answered else 0.0),
            wasted_tokens=sum(step.output_tokens for step in steps if step is not answered),
            cost_always_top=plan.cost(len(models) - 1, usage),
            cost_always_first=plan.cost(0, usage),
        )


def end_of(leg: Leg | None, judge: RungJudge | None) -> str:
    """What became of an attempt; `leg` is None where the client has gone."""
    if leg is None or leg.end not in (LegEnd.ANSWERED, LegEnd.UNCONVINCING):
        return FAILED
    if leg.end is LegEnd.UNCONVINCING:
        return ESCALATED
    return KEPT if judge is not None and judge.verdict is not None else UNJUDGED


def usage_of(leg: Leg | None, placement: Placement) -> Usage:
    """What an attempt took: by the engine's word, or by what was foretold and counted."""
    told = leg and (leg.usage or leg.counted)
    if told and told.prompt_tokens:
        return told
    if placement.first_token_s is None and told is None:
        return Usage(0)
    return foretold(placement, told.completion_tokens if told else 0)


def foretold(placement: Placement, output_tokens: int) -> Usage:
    """What the prompt was predicted to take, and so much output."""
    predicted = placement.predicted
    return Usage(round(predicted.prompt_tokens), output_tokens, round(predicted.warm_tokens))


def _why(judge: RungJudge | None) -> str:
    if judge is None or judge.moment is None:
        return ""
    return judge.kept_for or (", ".join(judge.faults) if judge.faults else judge.moment.value)
