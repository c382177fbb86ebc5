"""Configuration of cascades: one model name over several models, cheapest first; its values, reader and JSON Schema.

Prices and abilities of a model stand with the model itself. A cascade names its models, how their answers are held back
and judged, and what may be spent on shadow samples.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from cascade.calibration_file import CalibrationFile
from cascade.calibration_json import InvalidCalibrationFile, read_calibration_file
from cascade.computable import COMPUTED_BUCKETS, calibration_faults
from cascade.judging import HoldbackSettings, HoldbackTimeoutAction
from cascade.models import ALL_ABILITIES, Ability, HoldbackWindow
from gateway.config.fields import parse_file, parse_writable_path, seconds
from tenancy.document import DocumentTable, InvalidValue, flag, integer, not_negative, one_of, positive, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, COUNT, FLAG, FRACTION, SOME_NAMES, TEXT

HOLD, STREAM = "hold", "stream"

MAX_ADDED_TTFT_S = 60.0
"""A client that waits longer has given up: such a value is in milliseconds."""

MAX_TOP_LOGPROBS = 20
"""Default of vLLM's `--max-logprobs`."""


@dataclass(frozen=True, slots=True)
class ShadowEntry:
    """Shadow samples of a cascade: how many, what they may cost, and how answers are compared."""

    share: float = 0.0
    """Share of accepted answers for which the next model is asked too."""
    max_budget_per_hour: float | None = None
    """Cost per hour, by the prices of the models; None: no limit."""
    max_tokens_per_hour: int = 1_000_000
    """Prompt and answer tokens per hour: limits samples where prices are unknown."""
    judge_model: str | None = None
    """Decides whether two answers agree; None: they are compared as normalised text."""
    max_mismatch_share: float | None = None
    """Share of accepted answers that differ as normalised text without a shift; None: it is taken from the calibration
    file or learned from the first samples."""


@dataclass(frozen=True, slots=True)
class CollectEntry:
    """Live requests to a labelled file: how many, what they may cost, and how their answers are labelled."""

    file: str
    """Labelled file to append to; all workers of a host share it."""
    share: float = 0.01
    """Share of the requests of tenants with `cascade_collect`."""
    max_budget_per_hour: float | None = None
    """Cost per hour and worker, by the prices of the models; None: no limit."""
    max_tokens_per_hour: int = 1_000_000
    """Prompt and answer tokens per hour and worker, verdicts included."""
    max_rows: int = 5_000
    """Rows of the file at which collection ends."""
    judge_model: str | None = None
    """Compares answers that nothing else labels."""
    scorer: tuple[str, ...] = ()
    """Command that scores answers, as a list of arguments."""
    scorer_timeout_s: float = 30.0
    store_prompts: bool = False
    """Whether the last text of each prompt is written too."""


@dataclass(frozen=True, slots=True)
class CascadeEntry:
    """A model name that is a cascade."""

    models: tuple[str, ...]
    calibration: CalibrationFile | None = field(default=None, repr=False)
    window: HoldbackWindow | None = field(default_factory=HoldbackWindow)
    """None: streams are not held back."""
    holdback: HoldbackSettings = field(default_factory=HoldbackSettings)
    check_unary: bool = True
    """Whether complete answers are judged, those that are not streamed."""
    shadow: ShadowEntry = field(default_factory=ShadowEntry)
    collect: CollectEntry | None = None
    """None: no live request is collected."""
    buckets: tuple[str, ...] = ()
    """Task buckets that requests and tenants may name, beside those computed from prompts."""
    uncalibrated: float | None = None
    """Without a calibration: the share of requests that start with the smallest model. None: not set, so none do, and
    a warning is logged."""


@dataclass(frozen=True, slots=True)
class CascadeModelEntry:
    """Abilities and price of a model as part of a cascade, beside its prices per token."""

    context_tokens: int | None = None
    """None: as its pods report."""
    abilities: frozenset[Ability] = ALL_ABILITIES
    cost_per_gpu_second: float = 0.0


LARGEST_MODEL, SMALLEST, LOCAL = "largest", "smallest", "local"
"""Start policies without a calibration. `local` is `smallest` by another name: of an edge cascade, whose first model
runs nearby."""


def read_cascade_model(table: DocumentTable) -> CascadeModelEntry:
    """Read `context_tokens`, `abilities` and `cost_per_gpu_second` of a model."""
    abilities = table.each("abilities", one_of(tuple(Ability)))
    return CascadeModelEntry(
        context_tokens=table.get("context_tokens", positive(integer), None),
        abilities=ALL_ABILITIES if abilities is None else frozenset(map(Ability, abilities)),
        cost_per_gpu_second=table.get("cost_per_gpu_second", not_negative, 0.0),
    )


def read_cascade(model: DocumentTable) -> CascadeEntry | None:
    """Read `cascade` of a model. Returns None where the model is not a cascade."""
    table = model.table("cascade")
    if table is None:
        return None
    models = table.each("models", text)
    if models is None:
        table.error("models", "is missing")
    elif len(set(models)) != len(models) or len(models) < 2:
        table.error("models", "must name two models or more, each once, the cheapest first")
    window, holdback = _holdback(table)
    buckets = table.each("buckets", _bucket) or ()
    if len(buckets) > MAX_NAMED_BUCKETS:
        table.error("buckets", f"must be {MAX_NAMED_BUCKETS} at most: each is a label of metrics")
    if "uncalibrated" in table and "calibration" in table:
        table.error("uncalibrated", "conflicts with `calibration`; set only one")
    found = CascadeEntry(
        models=models or (),
        calibration=table.get("calibration", lambda value: _calibration_file(value, buckets), None),
        window=window,
        holdback=holdback,
        check_unary=table.get("check_unary", flag, default=True),
        shadow=_shadow(table),
        collect=_collect(table),
        buckets=buckets,
        uncalibrated=table.get("uncalibrated", _share_of_smallest, None),
    )
    table.close()
    return found


def _share_of_smallest(value: object) -> float:
    if value in (LARGEST_MODEL, SMALLEST, LOCAL):
        return float(value != LARGEST_MODEL)
    try:
        return _fraction(value)
    except InvalidValue:
        raise InvalidValue(
            f"must be `{LARGEST_MODEL}`, `{SMALLEST}`, `{LOCAL}`, or a share from 0 to 1 that begins at the smallest"
        ) from None


MAX_NAMED_BUCKETS = 32

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def _bucket(value: object) -> str:
    found = text(value)
    if not BUCKET_NAME.fullmatch(found):
        raise InvalidValue("must be 1 to 32 of a-z, 0-9, - and _, and not begin with - or _")
    if found in COMPUTED_BUCKETS:
        raise InvalidValue(f"`{found}` is a bucket that the gateway computes; use another name")
    return found


def _calibration_file(value: object, buckets: Collection[str] = ()) -> CalibrationFile:
    path = parse_file(value)
    try:
        found = read_calibration_file(path.read_bytes())
    except OSError as error:
        raise InvalidValue(f"`{path}` cannot be read: {error.strerror}") from None
    except InvalidCalibrationFile as bad:
        raise InvalidValue(f"`{path}` is not a calibration file: {'; '.join(bad.faults)}") from None
    if faults := tuple(calibration_faults(found, buckets)):
        raise InvalidValue(f"`{path}` cannot be applied: {'; '.join(faults)}")
    return found


def _holdback(table: DocumentTable) -> tuple[HoldbackWindow | None, HoldbackSettings]:
    if table.get("holdback", lambda value: value is False or value == "off", default=False):
        return None, HoldbackSettings()
    default = HoldbackWindow()
    keys = table.table("holdback")
    if keys is None:
        return default, HoldbackSettings()
    window = HoldbackWindow(
        tokens=keys.get("tokens", positive(integer), default.tokens),
        max_added_ttft_s=keys.get(
            "max_added_ttft_s", seconds(MAX_ADDED_TTFT_S, "milliseconds"), default.max_added_ttft_s
        ),
        top=keys.get("top_logprobs", _top, default.top),
    )
    holdback = HoldbackSettings(
        tokens=window.tokens,
        max_added_s=window.max_added_ttft_s,
        streams_reasoning=keys.get("reasoning", one_of((HOLD, STREAM)), HOLD) == STREAM,
        complete_streams=keys.get("complete_streams", flag, default=False),
        on_timeout=HoldbackTimeoutAction(
            keys.get("on_timeout", one_of(tuple(HoldbackTimeoutAction)), HoldbackTimeoutAction.JUDGE.value)
        ),
    )
    keys.close()
    return window, holdback


def _top(value: object) -> int:
    found = integer(value)
    if not 2 <= found <= MAX_TOP_LOGPROBS:
        raise InvalidValue(f"must be from 2 to {MAX_TOP_LOGPROBS}")
    return found


def _shadow(table: DocumentTable) -> ShadowEntry:
    defaults = ShadowEntry()
    keys = table.table("shadow")
    if keys is None:
        return defaults
    found = ShadowEntry(
        share=keys.get("share", _fraction, defaults.share),
        max_budget_per_hour=keys.get("max_budget_per_hour", not_negative, defaults.max_budget_per_hour),
        max_tokens_per_hour=keys.get("max_tokens_per_hour", positive(integer), defaults.max_tokens_per_hour),
        judge_model=keys.get("judge_model", text, None),
        max_mismatch_share=keys.get("max_mismatch_share", _fraction, None),
    )
    if found.judge_model is not None and "max_mismatch_share" in keys:
        keys.error("max_mismatch_share", "conflicts with judge_model, which compares the answers; set only one")
    keys.close()
    return found


def _collect(table: DocumentTable) -> CollectEntry | None:
    keys = table.table("collect")
    if keys is None:
        return None
    if "file" not in keys:
        keys.error("file", "is missing")
    defaults = CollectEntry("")
    found = CollectEntry(
        file=str(keys.get("file", _label_file, Path())),
        share=keys.get("share", _fraction, defaults.share),
        max_budget_per_hour=keys.get("max_budget_per_hour", not_negative, None),
        max_tokens_per_hour=keys.get("max_tokens_per_hour", positive(integer), defaults.max_tokens_per_hour),
        max_rows=keys.get("max_rows", positive(integer), defaults.max_rows),
        judge_model=keys.get("judge_model", text, None),
        scorer=keys.each("scorer", text) or (),
        scorer_timeout_s=keys.get("scorer_timeout_s", seconds(3_600.0, "milliseconds"), 30.0),
        store_prompts=keys.get("store_prompts", flag, default=False),
    )
    keys.close()
    return found


def _label_file(value: object) -> Path:
    path = parse_writable_path(value)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidValue(f"`{path}` cannot be written")
    return path


def _fraction(value: object) -> float:
    found = not_negative(value)
    if found > 1:
        raise InvalidValue("must be from 0 to 1")
    return found


OFF: Schema = {"enum": [False, "off"]}


def cascade_model_schema() -> dict[str, Schema]:
    """Return the schema of a model's keys as part of a cascade, by key."""
    abilities = {"type": "array", "items": {"enum": [ability.value for ability in Ability]}}
    return {
        "context_tokens": described(COUNT.schema, "The longest prompt with its answer; its pods say so by default."),
        "abilities": described(abilities, "What it can, of what not every model can; all of it by default."),
        "cost_per_gpu_second": described(AMOUNT.schema, "Money per second of prefill, beside its prices per token."),
    }


def cascade_schema() -> Schema:
    """Return the schema of `cascade`."""
    held = table(
        {
            "tokens": described(COUNT.schema, "Answer tokens that are held back until they are judged (default 48)."),
            "max_added_ttft_s": described(AMOUNT.schema, "Maximum delay of an accepted stream (default 0.15)."),
            "top_logprobs": described(
                {"type": "integer", "minimum": 2, "maximum": MAX_TOP_LOGPROBS},
                "Top logprobs requested from the pod at each position (default 5).",
            ),
            "reasoning": described({"enum": [HOLD, STREAM]}, "hold: held with the answer; stream: judged by itself."),
            "complete_streams": described(FLAG.schema, "Streams are held to their end and judged as complete answers."),
            "on_timeout": described(
                {"enum": [word.value for word in HoldbackTimeoutAction]}, "Action after max_added_ttft_s."
            ),
        }
    )
    shadow = table(
        {
            "share": described(FRACTION.schema, "Share of accepted answers also requested from the next model."),
            "max_budget_per_hour": described(AMOUNT.schema, "Maximum cost of shadow answers per hour."),
            "max_tokens_per_hour": described(COUNT.schema, "Maximum tokens of shadow prompts and answers per hour."),
            "judge_model": described(TEXT.schema, "Model that decides whether two answers agree."),
            "max_mismatch_share": described(
                FRACTION.schema, "Share of answers that differ as text without a shift (default: learned)."
            ),
        }
    )
    collected = table(
        {
            "file": described(TEXT.schema, "Labelled file to append to, for `hearth cascade calibrate`."),
            "share": described(FRACTION.schema, "Share of the requests of tenants with cascade_collect."),
            "max_budget_per_hour": described(AMOUNT.schema, "Maximum cost of collected answers per hour and worker."),
            "max_tokens_per_hour": described(
                COUNT.schema, "Maximum tokens of collected prompts and answers per hour and worker."
            ),
            "max_rows": described(COUNT.schema, "Rows of the file at which collection ends (default 5000)."),
            "judge_model": described(TEXT.schema, "Model that compares answers which nothing else labels."),
            "scorer": described(SOME_NAMES.schema, "Command that scores answers, as a list of arguments."),
            "scorer_timeout_s": described(AMOUNT.schema, "Time limit of the scorer (default 30)."),
            "store_prompts": described(FLAG.schema, "Whether the last text of prompts is written (default false)."),
        },
        required=("file",),
    )
    return table(
        {
            "models": described(SOME_NAMES.schema, "Models behind this name, cheapest first."),
            "calibration": described(TEXT.schema, "File written by `hearth cascade calibrate`."),
            "buckets": described(
                {"type": "array", "items": {"type": "string", "pattern": f"^{BUCKET_NAME.pattern}$"}},
                "Task buckets that requests and tenants may name.",
            ),
            "uncalibrated": described(
                {"anyOf": [{"enum": [LARGEST_MODEL, SMALLEST, LOCAL]}, FRACTION.schema]},
                "Where requests start without a calibration: largest (default), smallest, or the share that starts at "
                "the smallest.",
            ),
            "holdback": described({"anyOf": [held, OFF]}, "How much of a stream is held back until judged, or off."),
            "check_unary": described(FLAG.schema, "Whether unary answers are judged (default true)."),
            "collect": described(collected, "Experimental: live requests to a labelled file (default: none)."),
            "shadow": described(shadow, "Shadow samples: how many, their cost, and how answers are compared."),
        },
        required=("models",),
    )
