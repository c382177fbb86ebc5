"""The record of one request to a cascade: which answer the client got, and whether one was discarded."""

import pytest

from cascade.record import ESCALATED, FAILED, KEPT, UNJUDGED, CascadeResult, CascadeStep


@pytest.mark.parametrize(
    ("ends", "answered", "is_escalated"),
    [((KEPT,), 0, False), ((ESCALATED, UNJUDGED), 1, True), ((FAILED,), None, False), ((), None, False)],
)
def test_the_answer_is_that_of_the_last_step(ends: tuple[str, ...], answered: int | None, is_escalated: bool) -> None:
    """A step that was kept or not judged has answered; a failed or an escalated one has not."""
    steps = tuple(CascadeStep(f"m{at}", end) for at, end in enumerate(ends))
    found = CascadeResult("auto", "chat", "m0", steps)
    assert found.answering_step == (None if answered is None else steps[answered])
    assert found.is_escalated is is_escalated
