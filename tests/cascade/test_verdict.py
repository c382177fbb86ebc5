"""One rung's answer judged by the ladder file."""

from dataclasses import replace
from math import inf, nan

import pytest

from cascade.ladder_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from cascade.verdict import Verdict, judge

FILE = LadderFile(
    *(("small", "large"), "margin", Stage.WINDOW, Promise(0.01, 0.95), Evidence(1_000, "sha256:00")),
    cuts=(Cut(0, ANY_BUCKET, 0.5),),
    is_promised=True,
)
EMPTY = LadderFile(("small", "large"), "margin", Stage.WINDOW, FILE.promise, FILE.evidence)


@pytest.mark.parametrize(
    ("signal", "verdict"), [(0.5, "keep"), (0.49, "escalate"), (nan, "escalate"), (None, "escalate")]
)
def test_a_full_window_is_decided(signal: float | None, verdict: str) -> None:
    """From the threshold on an answer is kept; what is not known never is."""
    assert judge(FILE, 0, "chat", signal) is Verdict(verdict)


def test_lots_decide_at_the_edge() -> None:
    """Of the answers right there a share is kept, and none where nobody draws."""
    file = replace(FILE, cuts=(Cut(0, ANY_BUCKET, inf, edge=0.5, edge_share=0.3),))
    assert judge(file, 0, "chat", 0.5, draw=0.29) is Verdict.KEEP
    assert judge(file, 0, "chat", 0.5, draw=0.3) is Verdict.ESCALATE
    assert judge(file, 0, "chat", 0.5) is Verdict.ESCALATE
    assert judge(file, 0, "chat", 0.51, draw=0.0) is Verdict.ESCALATE
    assert file.may_keep(0, "chat")


def test_without_a_promise_nothing_is_kept() -> None:
    """Nor at a rung that was not calibrated."""
    assert judge(EMPTY, 0, "chat", 1.0) is Verdict.ESCALATE
    assert judge(FILE, 1, "chat", 1.0) is Verdict.ESCALATE
