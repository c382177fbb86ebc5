"""Shadow samples: the next model is asked a question whose answer was accepted, and both answers are compared.

Runs after the client has its answer, at the lowest priority, within a budget of money, places and tokens. Keeps no
text. Thresholds follow the results (`cascade/drift.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf

import msgspec
from msgspec import Struct

from cascade.calibration_file import CalibrationFile
from cascade.drift import TRIAL_INTERVAL, DriftController, FreezeDetector
from cascade.models import Cascade
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


class ShadowAnswer(Struct, frozen=True):
    """Answer of a model asked aside of a client's request."""

    text: str
    usage: Usage


LogFunction = Callable[..., None]
"""Logs an event: its level, its message, its fields."""

AskModel = Callable[[bytes | None, str], Awaitable[ShadowAnswer | None]]
"""Sends a model the client's own body (None) or this question. Returns None where it gave no answer."""


@dataclass(slots=True)
class ShadowState:
    """Shadow sampling of one cascade that was calibrated."""

    calibration: CalibrationFile
    harmless: float
    """Share of differing answers taken to lose nothing."""
    judge_model: str | None
    """Compares the answers; None: they are compared as text."""
    drift: DriftController
    budget: ShadowBudget
    tokens: ShadowBudget
    freeze_detectors: tuple[FreezeDetector, ...]
    """By model but the largest."""


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
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, served: Mapping[str, CascadeConfig]) -> None:
        """Sample these cascades from now on. State is carried over where the calibration is the same."""
        kept: dict[str, ShadowState] = {}
        for name, each in served.items():
            file, shadow, before = each.cascade.calibration, each.shadow, self._kept.get(name)
            if file is None:
                continue
            harmless = 0.0 if shadow.judge_model is not None else shadow.max_mismatch_share
            if before is not None and (before.calibration, before.harmless) == (file, harmless):
                staying, keeping = before.drift, before.freeze_detectors
            else:
                # How the kept share divides among the models is not in the file.
                steps = len(file.models) - 1
                staying = DriftController(file, harmless=harmless)
                keeping = tuple(FreezeDetector(file.evidence.kept / steps) for _ in range(steps))
            budget = ShadowBudget(
                shadow.share, per_hour=inf if shadow.max_budget_per_hour is None else shadow.max_budget_per_hour
            )
            tokens = ShadowBudget(1.0, per_hour=shadow.max_tokens_per_hour)
            kept[name] = ShadowState(file, harmless, shadow.judge_model, staying, budget, tokens, keeping)
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
        has_changed = keeping.record(is_kept=is_kept)
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
        if not kept.budget.reserve(self._draw(), price, now_s):
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
        try:
            larger = run.plan.cascade.models[at + 1]
            answer = await sample.ask(None, larger.name)
            if answer is None:
                return
            usage = answer.usage
            cost = larger.price.cost(cold_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
            agreed: bool | None = answers_agree(ours, answer.text)
            if kept.judge_model is not None and not agreed:
                prompt = comparison_prompt(last_text(sample.body), ours, answer.text).encode()
                judged = await sample.ask(prompt, kept.judge_model)
                agreed = read_comparison(judged.text) if judged is not None else None
            if agreed is not None:
                self._take(run.plan.cascade.name, kept, at, float(agreed))
        finally:
            _release(kept, sample, usage, cost)

    def _take(self, name: str, kept: ShadowState, at: int, agreed: float) -> None:
        staying, was_withdrawn = kept.drift, kept.drift.is_withdrawn
        staying.record_sample(at, agreed)
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


def _release(kept: ShadowState, sample: ShadowSample, usage: Usage, cost: float) -> None:
    kept.budget.release(sample.cost, cost)
    kept.tokens.release(sample.tokens, usage.prompt_tokens + usage.completion_tokens)


# Comparing two answers

WORDS = re.compile(r"[^\W_]+", re.UNICODE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

MAX_SHORT_WORDS = 12
"""Answers of at most this many words agree only if they have the same words."""

MIN_COMMON_SHARE = 0.6
"""Longer ones agree if they have this share of their words in common, and end on the same number where both do."""

VERDICT = re.compile(r"\b(same|different)\b", re.IGNORECASE)


def answers_agree(ours: str, theirs: str) -> bool:
    """Return whether two answers agree as normalised text: case, punctuation and order of phrases aside."""
    left, right = _json(ours), _json(theirs)
    if left is not None or right is not None:
        return left == right
    mine, other = WORDS.findall(ours.lower()), WORDS.findall(theirs.lower())
    if max(len(mine), len(other)) <= MAX_SHORT_WORDS:
        return mine == other
    if (last := _last_number(ours)) is not None and (end := _last_number(theirs)) is not None and last != end:
        return False
    common = len(set(mine) & set(other))
    return common >= MIN_COMMON_SHARE * max(1, min(len(set(mine)), len(set(other))))


def answer_text(answer: bytes) -> str:
    """Return the text of a generated message in canonical bytes."""
    return answer.removeprefix(open_message("assistant")).decode("utf-8", "replace").strip()


def comparison_prompt(question: str, ours: str, theirs: str) -> str:
    """Return the prompt for a judge model: the question and both answers, in one turn."""
    return (
        "Two answers to the same question follow. Say SAME if a reader would be served equally well by either, "
        f"else say DIFFERENT. Answer with that one word.\n\nQuestion:\n{question}\n\nFirst answer:\n{ours}\n\n"
        f"Second answer:\n{theirs}\n"
    )


def read_comparison(answer: str) -> bool | None:
    """Return a judge model's verdict: True for same, False for different, None for neither."""
    found = VERDICT.search(answer)
    return None if found is None else found[1].lower() == "same"


def _json(text: str) -> object:
    held = text.strip()
    if not held.startswith(("{", "[")):
        return None
    try:
        return msgspec.json.decode(held.encode())
    except msgspec.MsgspecError:
        return None


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
