"""Live requests to a labelled file: all models of a cascade receive a sampled request, and their answers labelled.

Only for cascades with `collect`, and of tenants whose policy has `cascade_collect`. Runs after the client has its
answer, as internal requests of its tenant at the lowest priority, within budgets of money and tokens. Keeps no text
unless `store_prompts` is set. `cascade/calibration/labelling.py` says how labels come about.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from pathlib import Path

import msgspec

from cascade.answer_comparison import ComparisonVerdict, comparison_prompt, outcome_of_orders, read_comparison
from cascade.calibration.labelling import CollectedAnswer, CollectedRow, InvalidScores, LabelSource, known_losses
from cascade.calibration_file import SignalStage
from cascade.logprobs import LOGPROB_APIS
from cascade.models import Cascade
from cascade.shadow_budget import ShadowBudget
from gateway.cascades.answer_scorer import AnswerScorer, scorer_input
from gateway.cascades.cascade_config import CascadeConfig
from gateway.cascades.cascade_run import CascadePlan
from gateway.cascades.collected_answers import read_answer, text_outcomes
from gateway.cascades.features import last_text
from gateway.cascades.shadow_sampling import AskModel
from gateway.config.cascades import CollectEntry
from gateway.runtime.line_writer import LineWriter
from tenancy.tenants import Tenant

CollectAnswer = Callable[[str, int], Awaitable[bytes | None]]
"""Sends a model the client's own body, unary, with so many log-probabilities per token. Returns the response's body;
None where there was no answer."""


@dataclass(slots=True)
class CollectionState:
    """Collection of one cascade."""

    entry: CollectEntry
    cascade: Cascade
    writer: LineWriter
    scorer: AnswerScorer | None
    budget: ShadowBudget
    tokens: ShadowBudget
    rows: int
    """In the file when this process began, and those that it added."""
    labels: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class CollectionSample:
    """One request chosen for collection. It holds its reservations until it has been collected."""

    state: CollectionState
    plan: CascadePlan
    cost: float
    """Reserved, in the currency of the prices."""
    used_tokens: float
    """Reserved."""
    body: bytes
    """As the client sent it."""
    collect: CollectAnswer
    ask: AskModel


class LiveCollector:
    """Chooses live requests and collects their answers; one per gateway process."""

    def __init__(self, *, draw: Callable[[], float], clock: Callable[[], float]) -> None:
        self._draw = draw
        self._clock = clock
        self._states: dict[str, CollectionState] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._group_key = os.urandom(16)
        """Names of groups show nothing of a prompt, and cannot be computed from one."""

    def apply(self, served: Mapping[str, CascadeConfig]) -> None:
        """Collect for these cascades from now on. What has not changed goes on."""
        before, self._states = self._states, {}
        for name, each in served.items():
            if each.collect is None:
                continue
            state = before.get(name)
            if state is None or (state.entry, state.cascade.models) != (each.collect, each.cascade.models):
                state = _open(each.collect, each.cascade)
            self._states[name] = state
        for name, state in before.items():
            if self._states.get(name) is not state:
                state.writer.close()

    def reserve(
        self, plan: CascadePlan, body: bytes, tenant: Tenant, collect: CollectAnswer, ask: AskModel
    ) -> CollectionSample | None:
        """Choose this request, within the budgets and its tenant's policy. Returns None where it is not chosen.

        Only requests that may be answered by any model of the cascade are a sample of what its thresholds decide.
        """
        state = self._states.get(plan.cascade.name)
        if state is None or not tenant.cascade_collect or state.rows >= state.entry.max_rows:
            return None
        is_judged = plan.constraints.may_escalate and not plan.constraints.quality_first and plan.sequences == 1
        if not is_judged or plan.api not in LOGPROB_APIS or len(plan.allowed_models) < len(plan.cascade.models):
            return None
        cost, tokens, now_s = _reservation(state, plan), _reserved_tokens(state, plan), self._clock()
        if not state.budget.reserve(self._draw(), cost, now_s):
            return None
        if not state.tokens.reserve(0.0, tokens, now_s):
            state.budget.release(cost, 0.0)
            return None
        return CollectionSample(state, plan, cost, tokens, body, collect, ask)

    def settle(self, sample: CollectionSample, *, is_answered: bool) -> None:
        """Collect, now that the request has ended; without an answer release what was reserved."""
        if not is_answered:
            sample.state.budget.release(sample.cost, 0.0)
            sample.state.tokens.release(sample.used_tokens, 0.0)
            return
        task = asyncio.get_running_loop().create_task(self._collect(sample))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel what is in progress, and write what was collected."""
        for task in tuple(self._tasks):
            task.cancel()
        for state in self._states.values():
            state.writer.close()

    def status(self, name: str) -> dict[str, object] | None:
        """Return what this process has collected for a cascade; None where it does not collect."""
        state = self._states.get(name)
        if state is None:
            return None
        return {
            "file": str(state.entry.file),
            "rows": state.rows,
            "max_rows": state.entry.max_rows,
            "labels": dict(state.labels),
            "failures": dict(state.failures),
            "cost": state.budget.spent,
        }

    async def _collect(self, sample: CollectionSample) -> None:
        state, spent = sample.state, _Spent()
        try:
            answers = await self._answers(sample, spent)
            if answers is None:
                return
            row = CollectedRow(sample.plan.features.bucket, answers, text_outcomes=text_outcomes(answers))
            row.plain = {"stage": _stage(sample.plan).value}
            row.group = self._group(sample)
            if state.entry.store_prompts:
                row.plain["prompt"] = last_text(sample.body)
            row.losses = known_losses([answer.text for answer in answers], sample.plan.features.schema)
            await self._label(sample, row, spent)
            state.labels[row.label] += 1
            state.rows += 1
            state.writer.put(row.line([model.name for model in state.cascade.models]).encode() + b"\n")
        except Exception as error:  # noqa: BLE001 - a row that cannot be made is counted
            state.failures[type(error).__name__] += 1
        finally:
            state.budget.release(sample.cost, spent.cost)
            state.tokens.release(sample.used_tokens, spent.tokens)

    async def _answers(self, sample: CollectionSample, spent: _Spent) -> tuple[CollectedAnswer, ...] | None:
        """Return the answers of all models; None, and a count, where one gave none."""
        plan, found = sample.plan, []
        for model in plan.cascade.models:
            response = await sample.collect(model.name, _top(plan))
            answer = None
            if response is not None:
                answer = read_answer(
                    plan.api,
                    response,
                    stream=False,
                    stage=_stage(plan),
                    window_tokens=plan.hold_back.tokens,
                    was_streamed=plan.stream,
                )
            if answer is None:
                sample.state.failures[f"{model.name}: no answer"] += 1
                return None
            price = model.price.cost(cold_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
            spent.add(price, answer.input_tokens + answer.output_tokens)
            found.append(answer)
        return tuple(found)

    async def _label(self, sample: CollectionSample, row: CollectedRow, spent: _Spent) -> None:
        state, texts = sample.state, [answer.text for answer in row.answers]
        models = [model.name for model in state.cascade.models]
        if state.scorer is not None:
            given = scorer_input(msgspec.json.decode(sample.body), models, texts)
            try:
                row.scores = await asyncio.to_thread(state.scorer.scores, given, models)
                row.source = LabelSource.SCORER
            except InvalidScores as wrong:
                state.failures[f"scorer: {wrong}"] += 1
        if state.entry.judge_model is None:
            return
        row.is_for_judge = True
        question, reference = last_text(sample.body), texts[-1]
        verdicts: list[int | None] = []
        for text, loss in zip(texts[:-1], row.losses, strict=True):
            if loss is not None:
                verdicts.append(None)
                continue
            orders = [(text, reference), (reference, text)]
            found = [await self._verdict(sample, comparison_prompt(question, *order), spent) for order in orders]
            verdicts.append(outcome_of_orders(*found))
        row.verdicts = tuple(verdicts)

    async def _verdict(self, sample: CollectionSample, prompt: str, spent: _Spent) -> ComparisonVerdict | None:
        judge = sample.state.entry.judge_model or ""
        answer = await sample.ask(prompt.encode(), judge)
        if answer is None:
            sample.state.failures[f"{judge}: no verdict"] += 1
            return None
        usage, at = answer.usage, sample.state.cascade.index_of(judge)
        price = sample.state.cascade.models[at].price if at is not None else None
        cost = price.cost(cold_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens) if price else 0.0
        spent.add(cost, usage.prompt_tokens + usage.completion_tokens)
        return read_comparison(answer.text)

    def _group(self, sample: CollectionSample) -> str:
        key = sample.plan.session or last_text(sample.body)
        return blake2b(key.encode("utf-8", "replace"), key=self._group_key, digest_size=8).hexdigest()


class _Spent:
    """What a sample has taken so far."""

    __slots__ = ("cost", "tokens")

    def __init__(self) -> None:
        self.cost, self.tokens = 0.0, 0.0

    def add(self, cost: float, tokens: float) -> None:
        self.cost += cost
        self.tokens += tokens


def _open(entry: CollectEntry, cascade: Cascade) -> CollectionState:
    path = Path(entry.file)
    if not path.exists():
        path.touch(mode=0o600)
    with path.open("rb") as file:
        rows = sum(1 for _ in file)
    return CollectionState(
        entry,
        cascade,
        LineWriter(path),
        AnswerScorer.of_command(entry.scorer, entry.scorer_timeout_s) if entry.scorer else None,
        ShadowBudget(
            entry.share, per_hour=inf if entry.max_budget_per_hour is None else entry.max_budget_per_hour, at_once=4
        ),
        ShadowBudget(1.0, per_hour=entry.max_tokens_per_hour, at_once=4),
        rows,
    )


def _stage(plan: CascadePlan) -> SignalStage:
    """Return the stage whose signal its clients' answers show: the window, unless they are held to their end."""
    return SignalStage.WHOLE if plan.hold_back.complete_streams else SignalStage.WINDOW


def _top(plan: CascadePlan) -> int:
    window = plan.cascade.holdback_window
    return window.top if window is not None else 5


def _reservation(state: CollectionState, plan: CascadePlan) -> float:
    cost = sum(
        model.price.cost(cold_tokens=plan.tokens, output_tokens=plan.output_tokens) for model in plan.cascade.models
    )
    at = state.cascade.index_of(state.entry.judge_model) if state.entry.judge_model else None
    if at is None:
        return cost
    # In both orders, for each model but the largest: the question and two answers.
    comparisons = 2 * (len(plan.cascade.models) - 1)
    price = state.cascade.models[at].price
    return cost + comparisons * price.cost(cold_tokens=plan.tokens + 2 * plan.output_tokens, output_tokens=8)


def _reserved_tokens(state: CollectionState, plan: CascadePlan) -> float:
    models = len(plan.cascade.models)
    judged = 2 * (models - 1) * (plan.tokens + 2 * plan.output_tokens) if state.entry.judge_model else 0
    return float(models * (plan.tokens + plan.output_tokens) + judged)
