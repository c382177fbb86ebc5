"""The JSON Schema of ladders and of their rungs."""

from __future__ import annotations

from cascade.ladder import Ability
from gateway.cascades.judge import AtTime
from gateway.config.ladder import HOLD, LARGEST, MOST_TOP, SMALLEST, STREAM
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, COUNT, FLAG, FRACTION, SOME_NAMES, TEXT

OFF: Schema = {"enum": [False, "off"]}


def rung_schema() -> dict[str, Schema]:
    """What a model may say of itself as a rung."""
    abilities = {"type": "array", "items": {"enum": [ability.value for ability in Ability]}}
    return {
        "context_tokens": described(COUNT.schema, "The longest prompt with its answer; its pods say so by default."),
        "abilities": described(abilities, "What it can, of what not every model can; all of it by default."),
        "cost_per_gpu_second": described(AMOUNT.schema, "Money per second of prefill, beside its prices per token."),
    }


def ladder_schema() -> dict[str, Schema]:
    """What a model that is a ladder says."""
    held = table(
        {
            "tokens": described(COUNT.schema, "Answer tokens that are held until they are judged: 48."),
            "max_added_ttft_ms": described(AMOUNT.schema, "Longest that a kept stream is held: 150."),
            "top_logprobs": described(
                {"type": "integer", "minimum": 2, "maximum": MOST_TOP}, "Likeliest tokens asked for at each place: 5."
            ),
            "reasoning": described({"enum": [HOLD, STREAM]}, "Whether reasoning is held too, or judged by itself."),
            "whole_streams": described(FLAG.schema, "Streams are held to their end, and judged as whole answers."),
            "at_time": described({"enum": [word.value for word in AtTime]}, "What becomes of it when time is up."),
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
