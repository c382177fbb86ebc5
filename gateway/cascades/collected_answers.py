"""Responses to collected answers: text, signals and usage, read as a judge of the cascade would read them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec

from cascade.answer_comparison import answers_agree
from cascade.calibration.labelling import CollectedAnswer
from cascade.calibration_file import SignalStage
from cascade.judging import AnswerEvidence
from cascade.signals.tokens import TokenSignals, read_signals
from gateway.cascades.answers import add_body, add_events
from routing.reading import read_usage
from routing.request import Api, Usage

REASONING = b'"reasoning'
"""Occurs in every message with reasoning."""


def read_answer(
    api: Api,
    response: bytes,
    *,
    stream: bool,
    stage: SignalStage,
    window_tokens: int,
    was_streamed: bool | None = None,
) -> CollectedAnswer | None:
    """Return the answer of a complete response; None where it is no response of a model.

    `was_streamed`: whether clients get such answers as streams. In a unary response the tokens of reasoning cannot be
    told from those of the answer; where clients stream, its signals are left unknown.
    """
    evidence, usage = AnswerEvidence(), None
    if stream:
        add_events(api, response, evidence)
        usage = _stream_usage(response)
    else:
        add_body(api, response, evidence)
        usage = read_usage(api, response)
    text = evidence.joined_text()
    calls = evidence.calls()
    if not text and not calls and evidence.finish_reason is None:
        return None
    tokens = evidence.answer if stage is SignalStage.WHOLE else evidence.answer[:window_tokens]
    if was_streamed and not stream and REASONING in response and _has_reasoning(response):
        tokens = []
    signals = read_signals(tokens) if tokens else TokenSignals()
    counts = usage or Usage(0)
    # What is compared is what the client gets: text and the arguments of tool calls.
    return CollectedAnswer("\n".join((text, *calls)), signals, counts.prompt_tokens, counts.completion_tokens)


def text_outcomes(answers: tuple[CollectedAnswer, ...]) -> tuple[int, ...]:
    """Return for each model but the largest 1 where its text differs from the next model's, else 0."""
    return tuple(0 if answers_agree(answer.text, following.text) else 1 for answer, following in pairwise(answers))


def _stream_usage(response: bytes) -> Usage | None:
    """Return the usage of a stream's last event that has one."""
    for line in reversed(response.split(b"\n")):
        if line.startswith(b"data:") and b'"usage"' in line and (found := read_usage(Api.CHAT, line[5:].strip())):
            return found
    return None


def _has_reasoning(response: bytes) -> bool:
    try:
        choices: Any = json.loads(response)["choices"]
        message = choices[0]["message"]
        return bool(message.get("reasoning") or message.get("reasoning_content"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, msgspec.MsgspecError):
        return False
