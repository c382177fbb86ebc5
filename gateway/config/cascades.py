"""Configuration of cascades: one model name over several models, cheapest first; its values, reader and JSON Schema.

Prices and abilities of a model stand with the model itself. A cascade names its models, how their answers are held back
and judged, and what may be spent on shadow samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cascade.calibration_file import CalibrationFile
from cascade.calibration_json import InvalidCalibrationFile, read_calibration_file
from cascade.computable import calibration_faults
from cascade.judging import HoldbackSettings, HoldbackTimeoutAction
from cascade.models import ALL_ABILITIES, Ability, HoldbackWindow
from gateway.config.fields import parse_file
from tenancy.document import DocumentTable, InvalidValue, flag, not_negative, one_of, positive, text, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, COUNT, FLAG, FRACTION, SOME_NAMES, TEXT

HOLD, STREAM = "hold", "stream"

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
    max_mismatch_share: float = 0.3
    """Share of answers that differ as normalised text and lose nothing: free text is seldom the same twice."""


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


LARGEST, SMALLEST = "largest", "smallest"

CASCADE_KEYS = ("calibration", "uncalibrated", "hold_back", "judge_whole", "shadow_fraction", "shadow")


def read_cascade_model(table: DocumentTable) -> CascadeModelEntry:
    """Read `context_tokens`, `abilities` and `cost_per_gpu_second` of a model."""
    abilities = table.each("abilities", one_of(tuple(Ability)))
    return CascadeModelEntry(
        context_tokens=table.get("context_tokens", positive(whole), None),
        abilities=ALL_ABILITIES if abilities is None else frozenset(map(Ability, abilities)),
        cost_per_gpu_second=table.get("cost_per_gpu_second", not_negative, 0.0),
    )


def read_cascade(table: DocumentTable) -> CascadeEntry | None:
    """Read `ladder` and the keys beside it. Returns None where the model is not a cascade."""
    models = table.each("ladder", text)
    if models is None:
        for word in CASCADE_KEYS:
            table.reject_unknown(word, "stands without a ladder")
        return None
    if len(set(models)) != len(models) or len(models) < 2:
        table.error("ladder", "must name two models or more, each once, the cheapest first")
    window, hold_back = _holdback(table)
    if "uncalibrated" in table and "calibration" in table:
        table.error("uncalibrated", "is for a ladder without `calibration`: remove one of them")
    return CascadeEntry(
        models=models,
        calibration=table.get("calibration", _calibration_file, None),
        window=window,
        holdback=hold_back,
        check_unary=table.get("judge_whole", flag, default=True),
        shadow=_shadow(table),
        uncalibrated=table.get("uncalibrated", _share_of_smallest, None),
    )


def _share_of_smallest(value: object) -> float:
    if value in (LARGEST, SMALLEST):
        return float(value == SMALLEST)
    try:
        return _fraction(value)
    except InvalidValue:
        raise InvalidValue(
            f"must be `{LARGEST}`, `{SMALLEST}`, or a share from 0 to 1 that begins at the smallest"
        ) from None


def _calibration_file(value: object) -> CalibrationFile:
    path = parse_file(value)
    try:
        found = read_calibration_file(path.read_bytes())
    except OSError as error:
        raise InvalidValue(f"`{path}` cannot be read: {error.strerror}") from None
    except InvalidCalibrationFile as bad:
        raise InvalidValue(f"`{path}` is no calibration: {'; '.join(bad.faults)}") from None
    if faults := tuple(calibration_faults(found)):
        raise InvalidValue(f"`{path}` cannot hold at work: {'; '.join(faults)}")
    return found


def _holdback(table: DocumentTable) -> tuple[HoldbackWindow | None, HoldbackSettings]:
    if table.get("hold_back", lambda value: value is False or value == "off", default=False):
        return None, HoldbackSettings()
    default = HoldbackWindow()
    keys = table.table("hold_back")
    if keys is None:
        return default, HoldbackSettings()
    window = HoldbackWindow(
        tokens=keys.get("tokens", positive(whole), default.tokens),
        max_added_ttft_s=keys.get("max_added_ttft_ms", not_negative, default.max_added_ttft_s * 1000) / 1000,
        top=keys.get("top_logprobs", _top, default.top),
    )
    hold_back = HoldbackSettings(
        tokens=window.tokens,
        max_added_s=window.max_added_ttft_s,
        streams_reasoning=keys.get("reasoning", one_of((HOLD, STREAM)), HOLD) == STREAM,
        complete_streams=keys.get("whole_streams", flag, default=False),
        on_timeout=HoldbackTimeoutAction(
            keys.get("at_time", one_of(tuple(HoldbackTimeoutAction)), HoldbackTimeoutAction.JUDGE.value)
        ),
    )
    keys.close()
    return window, hold_back


def _top(value: object) -> int:
    found = whole(value)
    if not 2 <= found <= MAX_TOP_LOGPROBS:
        raise InvalidValue(f"must be from 2 to {MAX_TOP_LOGPROBS}")
    return found


def _shadow(table: DocumentTable) -> ShadowEntry:
    usual = ShadowEntry()
    fraction = table.get("shadow_fraction", _fraction, usual.share)
    words = table.table("shadow")
    if words is None:
        return ShadowEntry(fraction)
    found = ShadowEntry(
        share=fraction,
        max_budget_per_hour=words.get("max_budget_per_hour", not_negative, usual.max_budget_per_hour),
        max_tokens_per_hour=words.get("tokens_per_hour", positive(whole), usual.max_tokens_per_hour),
        judge_model=words.get("judge_model", text, None),
        max_mismatch_share=words.get("harmless", _fraction, usual.max_mismatch_share),
    )
    if found.judge_model is not None and "harmless" in words:
        words.error("harmless", "is of answers compared as text: `judge_model` compares them here")
    words.close()
    return found


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


def cascade_schema() -> dict[str, Schema]:
    """Return the schema of a cascade's keys, by key."""
    held = table(
        {
            "tokens": described(COUNT.schema, "Answer tokens that are held until they are judged: 48."),
            "max_added_ttft_ms": described(AMOUNT.schema, "Longest that a kept stream is held: 150."),
            "top_logprobs": described(
                {"type": "integer", "minimum": 2, "maximum": MAX_TOP_LOGPROBS},
                "Likeliest tokens asked for at each place: 5.",
            ),
            "reasoning": described({"enum": [HOLD, STREAM]}, "Whether reasoning is held too, or judged by itself."),
            "whole_streams": described(FLAG.schema, "Streams are held to their end, and judged as whole answers."),
            "at_time": described(
                {"enum": [word.value for word in HoldbackTimeoutAction]}, "What becomes of it when time is up."
            ),
        }
    )
    shadow = table(
        {
            "max_budget_per_hour": described(AMOUNT.schema, "Money for shadow answers in any hour."),
            "tokens_per_hour": described(COUNT.schema, "Tokens of shadow prompts and answers in any hour."),
            "judge_model": described(TEXT.schema, "A model that says whether two answers agree."),
            "harmless": described(FRACTION.schema, "Of answers that differ as text, so many lose nothing: 0.3."),
        }
    )
    return {
        "ladder": described(SOME_NAMES.schema, "The models behind this name, cheapest first."),
        "calibration": described(TEXT.schema, "The file that hearth cascade calibrate wrote."),
        "uncalibrated": described(
            {"anyOf": [{"enum": [LARGEST, SMALLEST]}, FRACTION.schema]},
            "Where requests begin without a calibration: largest (default), smallest, or the share of the smallest.",
        ),
        "hold_back": described({"anyOf": [held, OFF]}, "How much of a stream is held until it is judged, or off."),
        "judge_whole": described(FLAG.schema, "Whether answers that are not streamed are judged: yes by default."),
        "shadow_fraction": described(FRACTION.schema, "Of kept answers, so many are asked of the next rung too."),
        "shadow": described(shadow, "What that may cost, and who compares."),
    }
