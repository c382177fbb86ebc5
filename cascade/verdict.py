"""One rung's answer judged: good enough, not good enough, or not yet clear.

Pure look-up in the ladder file. What is not known is not good enough: a promise covers only what was calibrated.
"""

from __future__ import annotations

from enum import StrEnum

from cascade.ladder_file import LadderFile


class Verdict(StrEnum):
    """What becomes of a rung's answer."""

    KEEP = "keep"
    ESCALATE = "escalate"
    GREY = "grey"
    """Not decided yet, and likely to end as escalate: a hedge may begin the next rung. Never said of a full window."""


def judge(
    file: LadderFile, rung: int, bucket: str, signal: float | None, *, draw: float = 1.0, is_final: bool = True
) -> Verdict:
    """Whether this rung's answer is kept.

    `signal` is the one that the file names, None or nan where it could not be had; `draw` is uniform in [0, 1) and
    decides where many answers share the signal at the edge (without one they climb). While the window is still filling
    (`is_final=False`) nothing is decided: KEEP says only that it looks well so far.
    """
    cut = file.cut(rung, bucket) if file.is_promised else None
    if cut is None:
        return Verdict.ESCALATE if is_final else Verdict.GREY
    if is_final:
        return Verdict.KEEP if signal is not None and cut.keeps(signal, draw) else Verdict.ESCALATE
    is_doubtful = signal is None or not signal >= cut.threshold + cut.grey
    return Verdict.GREY if is_doubtful else Verdict.KEEP
