"""Scorers of the operator: a command, a Python function, or a command that runs unit tests on an answer.

Called in a thread of its own where an event loop runs. Whatever goes wrong in a scorer is an `InvalidScores`.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascade.calibration.labelling import InvalidScores, checked_scores
from tenancy.document import InvalidValue

MAX_OUTPUT_BYTES = 1 << 20

CODE_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)


def read_command(words: object) -> list[str]:
    """Return a command as a list of arguments. Raises `InvalidValue` for anything else: no shell reads it."""
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise InvalidValue('must be a list of arguments, such as ["python", "score.py"]')
    return words


class AnswerScorer:
    """Scores the answers of all models to one request."""

    def __init__(self, score: Callable[[dict[str, Any]], object]) -> None:
        """`score` takes {"request", "expected", "answers"} and returns scores from 0 to 1 by model."""
        self._score = score

    @classmethod
    def of_command(cls, command: Sequence[str], timeout_s: float) -> AnswerScorer:
        """Return a scorer that runs a command: JSON on its standard input, {"scores": {MODEL: SCORE}} as its output."""

        def score(given: dict[str, Any]) -> object:
            done = _run(command, json.dumps(given).encode(), timeout_s, subprocess.PIPE)
            if done.returncode:
                raise InvalidScores(f"it ended with status {done.returncode}")
            return json.loads(done.stdout[:MAX_OUTPUT_BYTES])["scores"]

        return cls(score)

    @classmethod
    def of_function(cls, name: str) -> AnswerScorer:
        """Return a scorer that calls `MODULE:NAME`. Raises `InvalidValue` where that does not exist."""
        module, _, function = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidValue(f"{name}: {error}") from None
        return cls(found)

    @classmethod
    def of_unit_tests(cls, command: Sequence[str], timeout_s: float) -> AnswerScorer:
        """Return a scorer that runs a command on each answer's code followed by the request's unit test.

        Both are its standard input; status 0 scores 1, any other or none in time scores 0.
        """

        def score(given: dict[str, Any]) -> object:
            return {
                model: _passes(command, f"{code_of(answer)}\n{given['unit_test']}\n", timeout_s)
                for model, answer in given["answers"].items()
            }

        return cls(score)

    def scores(self, given: dict[str, Any], models: Sequence[str]) -> tuple[float, ...]:
        """Return the scores by model. Raises `InvalidScores` for whatever goes wrong in the scorer."""
        try:
            return checked_scores(self._score(given), models)
        except InvalidScores:
            raise
        except subprocess.TimeoutExpired:
            raise InvalidScores("it took longer than its time limit") from None
        except Exception as error:  # noqa: BLE001 - code of the operator
            raise InvalidScores(f"it failed with {type(error).__name__}") from None


def scorer_input(
    request: Mapping[str, Any], models: Sequence[str], texts: Sequence[str], expected: str | None = None
) -> dict[str, Any]:
    """Return what a scorer is given."""
    return {"request": dict(request), "expected": expected, "answers": dict(zip(models, texts, strict=True))}


def code_of(answer: str) -> str:
    """Return the first fenced block of an answer; all of it where there is none."""
    found = CODE_BLOCK.search(answer)
    return answer if found is None else found[1]


def _passes(command: Sequence[str], text: str, timeout_s: float) -> bool:
    try:
        return _run(command, text.encode(), timeout_s).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _run(
    command: Sequence[str], given: bytes, timeout_s: float, output: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 - the operator's own command, without a shell
        command, input=given, stdout=output, stderr=subprocess.DEVNULL, timeout=timeout_s, check=False
    )
