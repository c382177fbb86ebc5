"""Shadow samples: what the next rung would have said to a question whose answer was kept, and what follows from it.

Runs after the client has its answer, at the lowest priority, within a budget of money, places and tokens. Keeps no
text: both answers are compared, and gone. Thresholds that follow it are `cascade/staying/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf

from msgspec import Struct

from cascade.ladder import Ladder
from cascade.ladder_file import LadderFile
from cascade.staying.budget import ShadowBudget
from cascade.staying.keeping import TRIAL, FreezeWatch
from cascade.staying.staying import Staying
from gateway.cascades.agreement import agree, question, spoken, verdict
from gateway.cascades.climb import Climb, Ending
from gateway.cascades.features import question_in
from gateway.cascades.guarantee_state import Standing
from gateway.cascades.record import KEPT
from gateway.cascades.served import Served
from routing.request import Usage


class Said(Struct, frozen=True):
    """What a shadow was told: the text of an answer, and what it took."""

    text: str
    usage: Usage


Say = Callable[..., None]
"""Logs an event: its level, its message, its fields."""

Ask = Callable[[bytes | None, str], Awaitable[Said | None]]
"""Asks a model: the client's own body, or this one. None where it gave no answer."""


@dataclass(slots=True)
class Kept:
    """What is known of one ladder that was calibrated."""

    file: LadderFile
    harmless: float
    """What it takes for harmless, of answers that differ."""
    staying: Staying
    budget: ShadowBudget
    tokens: ShadowBudget
    keeping: tuple[FreezeWatch, ...]
    """By rung but the top."""


class Shadowing:
    """One per gateway process."""

    def __init__(self, *, draw: Callable[[], float], clock: Callable[[], float], say: Say) -> None:
        self._say = say
        self._draw = draw
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, served: Mapping[str, Served]) -> None:
        """Watch these ladders. What was learned of a calibration is kept as long as it is the same."""
        kept: dict[str, Kept] = {}
        for name, each in served.items():
            file, shadow, before = each.ladder.file, each.shadow, self._kept.get(name)
            if file is None:
                continue
            harmless = 0.0 if shadow.judge_model is not None else shadow.harmless
            is_same = before is not None and (before.file, before.harmless) == (file, harmless)
            staying = before.staying if before is not None and is_same else Staying(file, harmless=harmless)
            budget = ShadowBudget(shadow.fraction, per_hour=inf if shadow.budget is None else shadow.budget)
            tokens = ShadowBudget(1.0, per_hour=shadow.tokens_per_hour)
            keeping = before.keeping if before is not None and is_same else _keeping(file)
            kept[name] = Kept(file, harmless, staying, budget, tokens, keeping)
        self._kept = kept

    def corrected(self, ladder: Ladder) -> LadderFile | None:
        """The ladder's file as its shadows have corrected it."""
        kept = self._kept.get(ladder.name)
        return ladder.file if kept is None else kept.staying.file

    def standing(self, name: str) -> Standing | None:
        """How a promise stands, None where none was calibrated."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        file, staying = kept.staying.file, kept.staying
        return Standing(
            is_promised=file.is_promised,
            max_loss=file.promise.max_loss,
            examples=file.evidence.examples,
            has_drifted=staying.alarm,
            shadows=staying.shadows,
            agreement=staying.agreement,
            shadow_cost=kept.budget.spent,
            frozen=tuple(rung.is_frozen for rung in kept.keeping),
            raised=staying.correction,
        )

    def asks(self, name: str, rung: int) -> bool:
        """Whether a request that would begin at this rung is asked of it: seldom while it keeps nothing."""
        kept = self._kept.get(name)
        return kept is None or rung >= len(kept.keeping) or kept.keeping[rung].asks()

    def judged(self, name: str, rung: int, *, is_kept: bool) -> None:
        """Count an answer of this rung that was judged."""
        kept = self._kept.get(name)
        if kept is None or rung >= len(kept.keeping):
            return
        keeping = kept.keeping[rung]
        has_changed = keeping.take(is_kept=is_kept)
        if has_changed and keeping.is_frozen:
            self._say(
                "warning",
                "cascade rung keeps no answer",
                ladder=name,
                rung=kept.file.models[rung],
                judged_in_a_row=keeping.in_vain,
                calibrated_share=kept.file.evidence.kept,
                raised_steps=round(kept.staying.correction[rung], 3),
                effect=f"one request in {TRIAL} is asked of it, until an answer is kept",
                fix="calibrate again on answers of these engines and this traffic, and reload",
            )
        elif has_changed:
            self._say("info", "cascade rung keeps answers again", ladder=name, rung=kept.file.models[rung])
        if keeping.is_frozen:
            kept.staying.ease(rung)

    def takes(self, climb: Climb) -> bool:
        """Whether this request is to be a sample. Who is one has a place until its shadow ends."""
        kept, plan = self._kept.get(climb.plan.ladder.name), climb.plan
        if kept is None or plan.sequences > 1 or plan.start + 1 >= len(plan.ladder.rungs):
            return False
        now_s, tokens = self._clock(), plan.tokens
        price = plan.ladder.rungs[plan.start + 1].price.of(cold_tokens=tokens, output_tokens=plan.output_tokens)
        if not kept.budget.takes(self._draw(), price, now_s):
            return False
        if kept.tokens.takes(0.0, tokens + plan.output_tokens, now_s):
            climb.reserved = (price, float(tokens + plan.output_tokens))
            return True
        kept.budget.end(price, 0.0)
        return False

    def settled(self, climb: Climb, ending: Ending, body: bytes, ask: Ask, judge_model: str | None) -> None:
        """A sample has ended. Where its answer was kept, the next rung is asked."""
        kept = self._kept.get(climb.plan.ladder.name)
        if kept is None or climb.reserved is None:
            return
        leg, answered = ending.leg, climb.climbed().answered
        if answered is None or answered.ended != KEPT or leg is None or not leg.answer or climb.kept_all_the_same:
            self._end(kept, climb.reserved, Usage(0), 0.0)
            return
        ours = spoken(leg.answer)
        task = asyncio.get_running_loop().create_task(self._compare(kept, climb, ours, body, ask, judge_model))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _compare(
        self, kept: Kept, climb: Climb, ours: str, body: bytes, ask: Ask, judge_model: str | None
    ) -> None:
        at, took, cost = climb.at, Usage(0), 0.0
        try:
            said = await ask(None, climb.plan.ladder.rungs[at + 1].model)
            if said is None:
                return
            took = said.usage
            cost = climb.plan.ladder.rungs[at + 1].price.of(
                cold_tokens=took.prompt_tokens, output_tokens=took.completion_tokens
            )
            agreed: bool | None = agree(ours, said.text)
            if judge_model is not None and not agreed:
                told = await ask(question(question_in(body), ours, said.text).encode(), judge_model)
                agreed = verdict(told.text) if told is not None else None
            if agreed is not None:
                self._take(climb.plan.ladder.name, kept, at, float(agreed))
        finally:
            self._end(kept, climb.reserved or (0.0, 0.0), took, cost)

    def _take(self, name: str, kept: Kept, rung: int, agreed: float) -> None:
        staying, was_withdrawn = kept.staying, kept.staying.alarm
        staying.take(rung, agreed)
        if staying.alarm and not was_withdrawn:
            self._say(
                "warning",
                "cascade promise withdrawn",
                ladder=name,
                rung=kept.file.models[rung],
                shadows=staying.shadows,
                agreement=round(staying.agreement, 3),
                effect=f"{kept.file.models[-1]} answers every request",
                fix="calibrate again, and reload",
            )

    @staticmethod
    def _end(kept: Kept, reserved: tuple[float, float], took: Usage, cost: float) -> None:
        kept.budget.end(reserved[0], cost)
        kept.tokens.end(reserved[1], took.prompt_tokens + took.completion_tokens)


def _keeping(file: LadderFile) -> tuple[FreezeWatch, ...]:
    """Of each rung but the top. How the kept share divides among them is not in the file."""
    steps = len(file.models) - 1
    return tuple(FreezeWatch(file.evidence.kept / steps) for _ in range(steps))
