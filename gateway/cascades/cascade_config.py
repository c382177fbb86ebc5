"""Cascades as configured: built from `model_list`, and why one of them never accepts an answer by its guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cascade.calibration_file import SignalStage
from cascade.judging import HoldbackSettings
from cascade.models import Cascade, CascadeModel, Price
from gateway.config.cascades import CascadeEntry, CollectEntry, ShadowEntry
from gateway.config.models import ModelEntry


@dataclass(frozen=True, slots=True)
class CascadeConfig:
    """One cascade, how its answers are held back, and what may be spent on shadow samples."""

    cascade: Cascade
    hold_back: HoldbackSettings
    shadow: ShadowEntry = field(default_factory=ShadowEntry)
    collect: CollectEntry | None = None
    """None: no live request is collected."""
    is_start_set: bool = False
    """Whether the configuration sets which model requests start with when there is no calibration."""


def configured_cascades(entries: Mapping[str, ModelEntry]) -> dict[str, CascadeConfig]:
    """Return all cascades of a `model_list`, by name, with the prices and abilities of their models."""
    return {name: _served(entry.cascade, name, entries) for name, entry in entries.items() if entry.cascade is not None}


def _served(entry: CascadeEntry, name: str, entries: Mapping[str, ModelEntry]) -> CascadeConfig:
    cascade = Cascade(
        name=name,
        models=tuple(_model(model, entries.get(model)) for model in entry.models),
        holdback_window=entry.window,
        judges_unary=entry.check_unary,
        calibration=entry.calibration,
        uncalibrated_share=entry.uncalibrated or 0.0,
        buckets=frozenset(entry.buckets),
    )
    return CascadeConfig(
        cascade, entry.holdback, entry.shadow, entry.collect, is_start_set=entry.uncalibrated is not None
    )


def _model(name: str, entry: ModelEntry | None) -> CascadeModel:
    if entry is None:  # The model is not configured: only its pods list it.
        return CascadeModel(name)
    price = Price(
        input_per_token=entry.input_cost_per_token or 0.0,
        cached_input_per_token=entry.cache_read_input_token_cost,
        output_per_token=entry.output_cost_per_token or 0.0,
        per_gpu_s=entry.cascade_model.cost_per_gpu_second,
    )
    return CascadeModel(name, price, entry.cascade_model.context_tokens, entry.cascade_model.abilities)


CALIBRATE = "run `hearth cascade calibrate` on labelled answers and set `calibration` to its file"


@dataclass(frozen=True, slots=True)
class UnusedGuarantee:
    """Why a cascade does not use a guarantee, as an event.

    `level` is warning, or info where the configuration asks for this.
    """

    level: str
    event: str
    effect: str
    fix: str


def unused_guarantee(served: CascadeConfig) -> UnusedGuarantee | None:
    """Return why no answer of this cascade is ever accepted by a guarantee; None where that is possible."""
    cascade = served.cascade
    smallest, largest = cascade.models[0].name, cascade.models[-1].name
    to_largest = f"{largest} answers every request"
    if cascade.calibration is None:
        share = cascade.uncalibrated_share
        if share <= 0.0:
            effect = to_largest
        elif share >= 1.0:
            effect = f"{smallest} answers every request that it can take, and no promise covers quality"
        else:
            effect = f"{smallest} answers {share:.0%} of requests, {largest} the others; no promise covers quality"
        if served.is_start_set:
            return UnusedGuarantee("info", "cascade_uncalibrated", effect, CALIBRATE)
        fix = f"{CALIBRATE}, or set `uncalibrated` to largest, smallest, or a share for the smallest"
        return UnusedGuarantee("warning", "cascade_uncalibrated", effect, fix)
    if not cascade.calibration.is_promised:
        return UnusedGuarantee(
            "warning",
            "cascade_without_guarantee",
            to_largest,
            "calibrate again with more labelled answers (evidence.needs), or with a larger --max-loss",
        )
    if not _can_judge(cascade, cascade.calibration.stage):
        return UnusedGuarantee(
            "warning",
            "cascade_calibration_unusable",
            to_largest,
            f"its stage is {cascade.calibration.stage}: set `holdback`, and `check_unary: true` for complete answers",
        )
    return None


def _can_judge(cascade: Cascade, stage: SignalStage) -> bool:
    """Return whether any answer shows the signal of this stage."""
    if stage is SignalStage.PROMPT:
        return True
    if cascade.holdback_window is None:  # Then no log-probabilities are requested.
        return False
    return stage is not SignalStage.WHOLE or cascade.judges_unary
