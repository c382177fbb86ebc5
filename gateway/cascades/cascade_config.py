"""Cascades as configured: built from `model_list`, and why one of them never accepts an answer by its guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cascade.calibration_file import Stage
from cascade.judging import HoldBack
from cascade.models import Ladder, Price, Rung
from gateway.config.cascades import LadderEntry, ShadowEntry
from gateway.config.models import ModelEntry


@dataclass(frozen=True, slots=True)
class Served:
    """A value."""

    ladder: Ladder
    hold_back: HoldBack
    shadow: ShadowEntry = field(default_factory=ShadowEntry)
    is_start_set: bool = False
    """Whether the configuration says where requests begin without a calibration."""


def served_ladders(entries: Mapping[str, ModelEntry]) -> dict[str, Served]:
    """All ladders of a `model_list`, by name."""
    return {name: _served(entry.ladder, name, entries) for name, entry in entries.items() if entry.ladder is not None}


def _served(entry: LadderEntry, name: str, entries: Mapping[str, ModelEntry]) -> Served:
    rungs = tuple(_rung(model, entries.get(model)) for model in entry.rungs)
    ladder = Ladder(
        name=name,
        rungs=rungs,
        window=entry.window,
        whole=entry.whole,
        file=entry.file,
        uncalibrated=entry.uncalibrated or 0.0,
    )
    return Served(ladder, entry.hold_back, entry.shadow, is_start_set=entry.uncalibrated is not None)


def _rung(model: str, entry: ModelEntry | None) -> Rung:
    if entry is None:  # A model of which there is nothing to say: it is listed by its pods alone.
        return Rung(model)
    price = Price(
        input_per_token=entry.input_cost_per_token or 0.0,
        cached_input_per_token=entry.cache_read_input_token_cost,
        output_per_token=entry.output_cost_per_token or 0.0,
        per_gpu_s=entry.rung.cost_per_gpu_second,
    )
    return Rung(model, price, entry.rung.context_tokens, entry.rung.abilities)


CALIBRATE = "run `hearth cascade calibrate` on labelled answers and set `calibration` to its file"


@dataclass(frozen=True, slots=True)
class Silence:
    """Of one ladder. `level` is warning, or info where the configuration asks for just that."""

    level: str
    message: str
    effect: str
    fix: str


def silence_of(served: Served) -> Silence | None:
    """Return why no answer of this ladder is ever kept by a promise; None where that is possible."""
    ladder = served.ladder
    smallest, largest = ladder.rungs[0].model, ladder.rungs[-1].model
    to_largest = f"{largest} answers every request"
    if ladder.file is None:
        share = ladder.uncalibrated
        if share <= 0.0:
            effect = to_largest
        elif share >= 1.0:
            effect = f"{smallest} answers every request that it can take, and no promise covers quality"
        else:
            effect = f"{smallest} answers {share:.0%} of requests, {largest} the others; no promise covers quality"
        if served.is_start_set:
            return Silence("info", "cascade without a calibration", effect, CALIBRATE)
        fix = f"{CALIBRATE}, or set `uncalibrated` to largest, smallest, or a share for the smallest"
        return Silence("warning", "cascade without a calibration", effect, fix)
    if not ladder.file.is_promised:
        return Silence(
            "warning",
            "calibration without a promise",
            to_largest,
            "calibrate again with more labelled answers (evidence.needs), or with a larger --max-loss",
        )
    if not _can_judge(served, ladder.file.stage):
        return Silence(
            "warning",
            "calibration cannot be applied",
            to_largest,
            f"its stage is {ladder.file.stage}: set `hold_back`, and `judge_whole: true` for whole answers",
        )
    return None


def _can_judge(served: Served, stage: Stage) -> bool:
    """Whether any answer shows the signal of this stage."""
    if stage is Stage.PROMPT:
        return True
    if served.ladder.window is None:  # Then no log-probabilities are asked for.
        return False
    return stage is not Stage.WHOLE or served.ladder.whole
