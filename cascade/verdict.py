"""One rung's answer judged: good enough, or not.

Pure look-up in the ladder file. What is not known is not good enough: a promise covers only what was calibrated.
"""

from __future__ import annotations

from enum import StrEnum

from cascade.ladder_file import LadderFile


class Verdict(StrEnum):
    """What becomes of a rung's answer."""

    KEEP = "keep"
    ESCALATE = "escalate"


def judge(file: LadderFile, rung: int, bucket: str, signal: float | None, *, draw: float = 1.0) -> Verdict:
    """Whether this rung's answer is kept.

    `signal` is the one that the file names, None or nan where it could not be had; `draw` is uniform in [0, 1) and
    decides where many answers share the signal at the edge (without one they climb).
    """
    cut = file.cut(rung, bucket) if file.is_promised else None
    is_kept = cut is not None and signal is not None and cut.keeps(signal, draw)
    return Verdict.KEEP if is_kept else Verdict.ESCALATE
