"""The rung a request begins at: the lowest that can and may take it, higher where the prompt alone says it would climb.

Pure: what is down, over its policy or full is told by the caller. Starting higher never loses quality against the top
rung; it only saves the price of an answer that would have been thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cascade.ladder import Ability, Ladder
from cascade.ladder_file import Stage
from cascade.tasks.features import Features, difficulty
from cascade.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs of its rung, and what policy or client allow it. Rungs are counted from the cheapest."""

    needs: frozenset[Ability] = frozenset()
    tokens: int = 0
    """Of its prompt and of the longest answer it may have."""
    least: int = 0
    most: int | None = None
    climbs: bool = True
    """Whether it may end on a higher rung than it began at."""


def open_rungs(ladder: Ladder, wish: Wish, is_up: Callable[[str], bool] | None = None) -> tuple[int, ...]:
    """The rungs that can and may take the request, cheapest first; empty where none can."""
    return tuple(
        at
        for at, rung in enumerate(ladder.rungs)
        if wish.least <= at and (wish.most is None or at <= wish.most) and rung.can(wish.needs, wish.tokens)
        if is_up is None or is_up(rung.model)
    )


def start_rung(
    ladder: Ladder, rungs: tuple[int, ...], bucket: str, features: Features, *, draw: float = 1.0
) -> int | None:
    """Where to begin among the open rungs; None where none is open.

    Without calibration the ladder says which share begins at the lowest; where a promise is not made this is the top of
    them: quality goes first until there is evidence. A ladder file of the prompt stage decides each rung by the prompt;
    a later stage begins at the lowest rung of which anything may be kept. `draw` in [0, 1) is that of `judge`, and
    decides without calibration.
    """
    if not rungs:
        return None
    file = ladder.file
    if file is None:
        return rungs[0] if draw < ladder.uncalibrated else rungs[-1]
    if not file.is_promised:
        return rungs[-1]
    for at in rungs[:-1]:
        if file.stage is Stage.PROMPT:
            if judge(file, at, bucket, prompt_signal(file.signal, features), draw=draw) is Verdict.KEEP:
                return at
        elif file.may_keep(at, bucket):
            return at
    return rungs[-1]


def prompt_signal(name: str, features: Features) -> float | None:
    """A signal of the prompt alone, by the name that a ladder file gives it; None for one that we cannot reckon."""
    return -difficulty(features) if name == EASE else None


EASE = "ease"
"""The difficulty of a prompt, negated."""
