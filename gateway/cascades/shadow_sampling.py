"""Shadow samples: the next model is asked a question whose answer was accepted, and both answers are compared.

Runs after the client has its answer, at the lowest priority, within a budget of money, places and tokens. Keeps no
text. Thresholds follow the results (`cascade/drift.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from msgspec import Struct

from cascade.answer_comparison import (
    OUTCOMES,
    ComparisonVerdict,
    answers_agree,
    comparison_prompt,
    read_comparison,
)
from cascade.calibration_file import CalibrationFile, Comparison
from cascade.drift import TRIAL_INTERVAL, DriftController, FreezeDetector, SampleOutcome
from cascade.models import Cascade
from cascade.net_loss_window import NetLossWindow
from cascade.record import KEPT
from cascade.shadow_budget import ShadowBudget
from gateway.cascades.cascade_config import CascadeConfig
from gateway.cascades.cascade_run import CascadePlan, CascadeRun
from gateway.cascades.features import last_text
from gateway.pipeline.attempt import AttemptResult
from routing.reading.conversation import open_message
from routing.request import Usage


@dataclass(frozen=True, slots=True)
class GuaranteeStatus:
    """State of one cascade's quality guarantee, and what its shadow samples cost."""

    is_promised: bool
    max_loss: float
    examples: int
    has_drifted: bool = False
    shadow_samples: int = 0
    agreement: float = 1.0
    shadow_cost: float = 0.0
    frozen: tuple[bool, ...] = ()
    """By model but the largest: whether it keeps no answer, and is asked for one request in `TRIAL_INTERVAL` only."""
    raised: tuple[float, ...] = ()
    """By model but the largest: steps that shadow samples have raised its thresholds by; at 10 the guarantee is
    withdrawn."""
    comparison: str = Comparison.TEXT
    """How answers are compared."""
    worse: int = 0
    """Samples in which the accepted answer was worse (by text: differed)."""
    better: int = 0
    is_suspected: bool = False
    """Whether the last samples make a shift likely; thresholds stand higher meanwhile."""
    samples_to_learn: int = 0
    """Samples until the reference is known; 0 where it is."""
    windows: tuple[NetLossWindow, ...] = ()
    """Windows of the alarm, the shortest first; empty while the reference is learned."""


class ShadowAnswer(Struct, frozen=True):
    """Answer of a model asked aside of a client's request."""

    text: str
    usage: Usage


LogFunction = Callable[..., None]
"""Logs an event: its level, its message, its fields."""

PublishSample = Callable[[str, SampleOutcome], bool]
"""Shares a sample of the calibration with this id. Returns False where it is not shared."""


AskModel = Callable[[bytes | None, str], Awaitable[ShadowAnswer | None]]
"""Sends a model the client's own body (None) or this question. Returns None where it gave no answer."""


@dataclass(slots=True)
class ShadowState:
    """Shadow sampling of one cascade that was calibrated."""

    calibration: CalibrationFile
    judge_model: str | None
    """Compares the answers; None: they are compared as text."""
    declared_difference: float | None
    """Share of texts that differ without a shift, as declared; None: it is learned."""
    drift: DriftController
    budget: ShadowBudget
    tokens: ShadowBudget
    freeze_detectors: tuple[FreezeDetector, ...]
    """By model but the largest."""
    id: str
    """Of the calibration and of how answers are compared: processes with the same id share their samples."""


SUSPECTED_FACTOR = 4.0
"""By how much the share of samples is multiplied while a shift is suspected."""


@dataclass(frozen=True, slots=True)
class ShadowSample:
    """One request chosen for a sample. It holds its place and its reservations until it is settled."""

    cost: float
    """Reserved, in the currency of the prices."""
    tokens: float
    """Reserved."""
    body: bytes
    """As the client sent it."""
    ask: AskModel


class ShadowSampler:
    """Chooses and runs the shadow samples of all cascades, and adapts their thresholds; one per gateway process."""

    def __init__(self, *, draw: Callable[[], float], clock: Callable[[], float], log_event: LogFunction) -> None:
        self._log_event = log_event
        self._draw = draw
        self._clock = clock
        self._kept: dict[str, ShadowState] = {}
        self.publish: PublishSample = lambda *_: False
        """Shares a sample with other processes, which is then applied by `apply_sample`."""
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, served: Mapping[str, CascadeConfig]) -> None:
        """Sample these cascades from now on. State is carried over where the calibration is the same."""
        kept: dict[str, ShadowState] = {}
        for name, each in served.items():
            file, shadow, before = each.cascade.calibration, each.shadow, self._kept.get(name)
            if file is None:
                continue
            how = (shadow.judge_model, shadow.max_mismatch_share)
            if before is not None and (before.calibration, before.judge_model, before.declared_difference) == (
                file,
                *how,
            ):
                staying, keeping = before.drift, before.freeze_detectors
            else:
                staying = DriftController(
                    file,
                    comparison=Comparison.TEXT if shadow.judge_model is None else Comparison.JUDGE,
                    declared_difference=shadow.max_mismatch_share,
                )
                keeping = tuple(map(FreezeDetector, accepted_shares(file)))
            budget = ShadowBudget(
                shadow.share, per_hour=inf if shadow.max_budget_per_hour is None else shadow.max_budget_per_hour
            )
            tokens = ShadowBudget(1.0, per_hour=shadow.max_tokens_per_hour)
            kept[name] = ShadowState(file, *how, staying, budget, tokens, keeping, _state_id(name, file, *how))
        self._kept = kept

    def corrected_calibration(self, cascade: Cascade) -> CalibrationFile | None:
        """Return the cascade's calibration with thresholds as corrected by its samples; None where it has none."""
        kept = self._kept.get(cascade.name)
        return cascade.calibration if kept is None else kept.drift.calibration

    def guarantee_status(self, name: str) -> GuaranteeStatus | None:
        """Return the state of a cascade's guarantee; None where it was not calibrated."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        file, staying = kept.drift.calibration, kept.drift
        return GuaranteeStatus(
            is_promised=file.is_promised,
            max_loss=file.promise.max_loss,
            examples=file.evidence.examples,
            has_drifted=staying.is_withdrawn,
            shadow_samples=staying.shadows,
            agreement=staying.agreement,
            shadow_cost=kept.budget.spent,
            frozen=tuple(watch.is_frozen for watch in kept.freeze_detectors),
            raised=staying.raised_steps,
            comparison=staying.comparison,
            worse=staying.worse,
            better=staying.better,
            is_suspected=staying.is_suspected,
            samples_to_learn=staying.samples_to_learn,
            windows=staying.windows,
        )

    def should_ask(self, name: str, at: int) -> bool:
        """Return whether the next request goes to this model: each, or one in `TRIAL_INTERVAL` while it is frozen."""
        kept = self._kept.get(name)
        return kept is None or at >= len(kept.freeze_detectors) or kept.freeze_detectors[at].should_ask()

    def record_verdict(self, name: str, at: int, *, is_kept: bool) -> None:
        """Count a judged answer of the model at this index; log when the model freezes or thaws."""
        kept = self._kept.get(name)
        if kept is None or at >= len(kept.freeze_detectors):
            return
        keeping = kept.freeze_detectors[at]
        has_changed = keeping.record(is_kept=is_kept, raised_steps=kept.drift.steps_of(at))
        if has_changed and keeping.is_frozen:
            self._log_event(
                "warning",
                "cascade_model_rejects_all",
                cascade=name,
                model=kept.calibration.models[at],
                rejected_in_a_row=keeping.rejected_in_a_row,
                calibrated_accept_share=kept.calibration.evidence.kept,
                raised_steps=round(kept.drift.raised_steps[at], 3),
                effect=f"one request in {TRIAL_INTERVAL} is asked of it, until an answer is kept",
                fix="calibrate again on answers of these engines and this traffic, and reload",
            )
        elif has_changed:
            self._log_event("info", "cascade_model_recovered", cascade=name, model=kept.calibration.models[at])
        if keeping.is_frozen:
            kept.drift.lower_thresholds(at)

    def reserve(self, plan: CascadePlan, body: bytes, ask: AskModel) -> ShadowSample | None:
        """Choose this request for a sample, within the budgets. Returns None where it is not chosen."""
        kept = self._kept.get(plan.cascade.name)
        if kept is None or plan.sequences > 1 or plan.start_index + 1 >= len(plan.cascade.models):
            return None
        now_s, tokens = self._clock(), plan.tokens
        price = plan.cascade.models[plan.start_index + 1].price.cost(
            cold_tokens=tokens, output_tokens=plan.output_tokens
        )
        # While a shift is suspected more samples are due, within the same budgets.
        draw = self._draw() / (SUSPECTED_FACTOR if kept.drift.is_suspected else 1.0)
        if not kept.budget.reserve(draw, price, now_s):
            return None
        if kept.tokens.reserve(0.0, tokens + plan.output_tokens, now_s):
            return ShadowSample(price, float(tokens + plan.output_tokens), body, ask)
        kept.budget.release(price, 0.0)
        return None

    def settle(self, sample: ShadowSample, run: CascadeRun, result: AttemptResult | None) -> None:
        """End a sample whose request has ended: ask the next model if the answer was accepted, else release it."""
        answered = run.result().answering_step
        # After a reload the cascade may be gone, or calibrated anew: its state is the one of today.
        kept = self._kept.get(run.plan.cascade.name)
        if kept is None:
            return
        if answered is None or answered.result != KEPT or result is None or not result.answer or run.was_kept_for_limit:
            _release(kept, sample, Usage(0), 0.0)
            return
        task = asyncio.get_running_loop().create_task(self._compare(kept, sample, run, answer_text(result.answer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the samples in progress."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _compare(self, kept: ShadowState, sample: ShadowSample, run: CascadeRun, ours: str) -> None:
        at, usage, cost = run.model_index, Usage(0), 0.0
        signal = run.judge.signal if run.judge else None
        is_surest = kept.calibration.is_surest(at, run.plan.features.bucket, signal)
        try:
            larger = run.plan.cascade.models[at + 1]
            answer = await sample.ask(None, larger.name)
            if answer is None:
                return
            usage = answer.usage
            cost = larger.price.cost(cold_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
            outcome: int | None = 0 if answers_agree(ours, answer.text) else 1
            if kept.judge_model is not None and outcome:
                outcome, judging = await self._judged(kept.judge_model, sample, ours, answer.text)
                usage = Usage(
                    usage.prompt_tokens + judging.prompt_tokens, usage.completion_tokens + judging.completion_tokens
                )
                cost += _judge_cost(run.plan.cascade, kept.judge_model, judging)
            if outcome is None:
                return
            found = SampleOutcome(at, outcome, is_surest)
            if not self.publish(kept.id, found):
                self._take(run.plan.cascade.name, kept, found)
        finally:
            _release(kept, sample, usage, cost)

    async def _judged(self, judge: str, sample: ShadowSample, ours: str, theirs: str) -> tuple[int | None, Usage]:
        """Ask the judge in both orders. Returns the outcome (None: no verdict) and what it took.

        Verdicts that contradict each other follow the order, not the answers: neither is better.
        """
        question, outcomes, prompt_tokens, output_tokens = last_text(sample.body), list[int](), 0, 0
        for first, second, sign in ((ours, theirs, 1), (theirs, ours, -1)):
            judged = await sample.ask(comparison_prompt(question, first, second).encode(), judge)
            verdict = None if judged is None else read_comparison(judged.text)
            if judged is not None:
                prompt_tokens += judged.usage.prompt_tokens
                output_tokens += judged.usage.completion_tokens
            if verdict is None:
                return None, Usage(prompt_tokens, output_tokens)
            if verdict is ComparisonVerdict.DIFFERENT:  # A judge that names no better one: as answers that differ.
                return 1, Usage(prompt_tokens, output_tokens)
            outcomes.append(sign * OUTCOMES[verdict])
        agreed = outcomes[0] if outcomes[0] == outcomes[1] else 0
        return agreed, Usage(prompt_tokens, output_tokens)

    @property
    def active_ids(self) -> set[str]:
        """Ids of the calibrations in use."""
        return {kept.id for kept in self._kept.values()}

    def apply_sample(self, state_id: str, sample: SampleOutcome) -> None:
        """Apply a sample that was shared. One of a calibration that is no longer in use is dropped."""
        for name, kept in self._kept.items():
            if kept.id == state_id and sample.index < len(kept.freeze_detectors):
                self._take(name, kept, sample)

    def _take(self, name: str, kept: ShadowState, sample: SampleOutcome) -> None:
        staying, at = kept.drift, sample.index
        was_withdrawn, was_suspected, was_learning = staying.is_withdrawn, staying.is_suspected, staying.reference
        staying.record_sample(at, sample.outcome, is_surest=sample.is_surest)
        if was_learning is None and staying.reference is not None:
            self._report_reference(name, kept)
        if staying.is_withdrawn and not was_withdrawn:
            self._log_event(
                "warning",
                "cascade_guarantee_withdrawn",
                cascade=name,
                model=kept.calibration.models[at],
                shadow_samples=staying.shadows,
                agreement=round(staying.agreement, 3),
                effect=f"{kept.calibration.models[-1]} answers every request",
                fix="calibrate again, and reload",
            )
        elif staying.is_suspected and not was_suspected:
            self._log_event(
                "warning",
                "cascade_drift_suspected",
                cascade=name,
                model=kept.calibration.models[at],
                shadow_samples=staying.shadows,
                agreement=round(staying.agreement, 3),
                effect="thresholds are raised and more shadow samples are taken until this is decided",
            )

    def _report_reference(self, name: str, kept: ShadowState) -> None:
        """Log a reference that was learned, and whether a break can be seen against it."""
        staying = kept.drift
        noticed = max(window.limits.noticed for window in staying.windows)
        is_blind = noticed < MIN_NOTICED
        self._log_event(
            "warning" if is_blind else "info",
            "cascade_drift_reference_learned",
            cascade=name,
            comparison=staying.comparison.value,
            shadow_samples=staying.shadows,
            agreement=round(staying.agreement, 3),
            noticed=round(noticed, 2),
            effect="a break to twice the allowed loss is unlikely to be noticed" if is_blind else "",
            fix="set shadow.judge_model, or calibrate with the comparison's outcomes" if is_blind else "",
        )


def _state_id(name: str, file: CalibrationFile, judge_model: str | None, declared_difference: float | None) -> str:
    given = (name, file.models, file.promise, file.evidence.fingerprint, judge_model, declared_difference)
    return blake2b(repr(given).encode(), digest_size=16).hexdigest()


MIN_NOTICED = 0.5
"""Probability of noticing a break below which a warning is logged."""


def accepted_shares(file: CalibrationFile) -> tuple[float, ...]:
    """Return by model but the largest the share of its judged answers that calibration accepted."""
    steps = len(file.models) - 1
    by_scores = {each.rung: each for each in file.reference if each.comparison is Comparison.SCORES}
    if not by_scores:  # Of an older file; how its share divides among the models is not known.
        return (file.evidence.kept / steps,) * steps
    return tuple(
        by_scores[at].samples / max(1, by_scores[at].judged) if at in by_scores else 0.0 for at in range(steps)
    )


def _judge_cost(cascade: Cascade, judge: str, usage: Usage) -> float:
    at = cascade.index_of(judge)
    if at is None:
        return 0.0
    return cascade.models[at].price.cost(cold_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)


def _release(kept: ShadowState, sample: ShadowSample, usage: Usage, cost: float) -> None:
    kept.budget.release(sample.cost, cost)
    kept.tokens.release(sample.tokens, usage.prompt_tokens + usage.completion_tokens)


def answer_text(answer: bytes) -> str:
    """Return the text of a generated message in canonical bytes."""
    return answer.removeprefix(open_message("assistant")).decode("utf-8", "replace").strip()
