"""The first question."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from diagnosis.baseline import Baseline, learned
from diagnosis.comparison import first_answer
from diagnosis.distribution import TOKEN_LIMITS, distribution_of
from diagnosis.facts import FleetFacts
from diagnosis.finding import Question
from diagnosis.request_times import Phase, RequestClass, RequestTimes, TrafficKey
from tests.diagnosis.scene import NOW_S, engine, fleet, gauge, later, pod, seconds

KEY = TrafficKey("m", "chat")
OTHER = replace(KEY, request_class=RequestClass.CONSTRAINED)

NORMAL = {Phase.GATEWAY: 0.01, Phase.QUEUE: 0.01, Phase.PREFILL: 0.2, Phase.TRANSFER: 0.05, Phase.DECODE: 2.0}


def times(
    at_s: float, key: TrafficKey = KEY, requests: int = 60, tokens: float = 500.0, answer: float = 100.0, **grown: float
) -> dict[TrafficKey, RequestTimes]:
    draws = Random(int(at_s) % 1000)
    spread = [draws.lognormvariate(0.0, 0.5) for _ in range(requests)]
    phases = {
        phase: seconds(*(mean * grown.get(phase.name.lower(), 1.0) * each for each in spread))
        for phase, mean in NORMAL.items()
    }
    return {
        key: RequestTimes(
            start_s=at_s - 60,
            end_s=at_s,
            requests=requests,
            phases=phases,
            prompt_tokens=distribution_of([tokens * each for each in spread], TOKEN_LIMITS),
            output_tokens=distribution_of([answer * each for each in spread], TOKEN_LIMITS),
        )
    }


def normal() -> Baseline:
    held = Baseline()
    for step in range(20):
        at_s = NOW_S + 60 * step
        held = learned(held, replace(later(fleet(), 60 * step), times=times(at_s)))
    return held


def facts(*changed: object, **grown: object) -> FleetFacts:
    return replace(fleet(*changed), times=times(NOW_S, **grown))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "factor", "question"),
    [
        ("gateway", 60.0, Question.ROUTING),
        ("prefill", 4.0, Question.PREFILL),
        ("transfer", 8.0, Question.TRANSFER),
        ("decode", 2.0, Question.DECODE),
    ],
)
def test_the_phase_that_grew_answers(phase: str, factor: float, question: Question) -> None:
    """Beside the baseline's seconds for it."""
    answer = first_answer(facts(**{phase: factor}), normal())
    assert answer.question is question, answer.reason
    after, before = answer.seconds[Phase[phase.upper()].value]
    assert after / before == pytest.approx(factor, rel=0.35)


def test_a_longer_engine_queue_is_answered_by_what_fills_the_engine() -> None:
    """KV full: decode. One of several engines overfull: routing. All alike: prefill."""
    queue = {"queue": 200.0}
    full = pod("c0", engines=(engine(kv_usage=gauge(0.99)),))
    assert first_answer(facts(full, **queue), normal()).question is Question.DECODE
    uneven = pod("c0", engines=(engine(waiting=gauge(9.0)),))
    assert first_answer(facts(uneven, **queue), normal()).question is Question.ROUTING
    assert first_answer(facts(**queue), normal()).question is Question.PREFILL


def test_nothing_grew() -> None:
    """The same traffic takes the same time."""
    assert first_answer(facts(), normal()).question is Question.NOTHING


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"requests": 8}, "too little traffic"),
        ({"tokens": 1500.0, "prefill": 3.0}, "prompt_tokens"),
        ({"answer": 40.0}, "output_tokens"),
        ({"requests": 150, "decode": 2.0}, "requests/s"),
        ({"key": OTHER, "decode": 2.0}, "other kinds"),
    ],
)
def test_a_changed_workload_is_unknown(changes: dict[str, object], reason: str) -> None:
    """Even where requests take longer: the baseline does not speak for them."""
    answer = first_answer(facts(**changes), normal())
    assert answer.question is Question.UNKNOWN
    assert reason in answer.reason


def test_without_a_baseline_the_answer_is_unknown() -> None:
    """None, and one that has nothing of this traffic."""
    assert first_answer(facts(), None).question is Question.UNKNOWN
    assert first_answer(facts(), Baseline()).question is Question.UNKNOWN
