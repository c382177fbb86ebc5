"""Ladders that use no promise: which rung answers then, and what changes it. Values; logs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from cascade.ladder_file import Stage
from gateway.cascades.served import Served

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
