"""Trust in an engine's events: falls with what was missed, rises with what was foretold."""

from hypothesis import given
from hypothesis import strategies as st

from routing.precise.event_reliability import MIN_AGREEMENTS, SHORT_ANSWERS, EventReliability, UnreliableReason


def trusted() -> EventReliability:
    trust = EventReliability()
    trust.mark_complete()
    return trust


def test_no_one_is_believed_without_evidence() -> None:
    """Not by any number of answers: without events there is nothing to agree with."""
    trust = EventReliability()
    for _ in range(100):
        assert not trust.observe(0, 320, 16)
        assert not trust.observe(320, 320, 16)
    assert trust.unreliable_reason is UnreliableReason.NO_EVENTS


def test_what_was_missed_is_reported_once() -> None:
    """The second gap tells nobody anything new; a cleared cache heals."""
    trust = trusted()
    assert trust.mark_unreliable(UnreliableReason.GAP)
    assert not trust.mark_unreliable(UnreliableReason.GAP)
    assert not trust.is_reliable
    trust.mark_complete()
    assert trust.is_reliable


def test_agreement_in_a_row_heals() -> None:
    """One disagreement begins the row anew; answers in which nothing was warm say nothing."""
    trust = trusted()
    trust.mark_unreliable(UnreliableReason.GAP)
    for _ in range(MIN_AGREEMENTS - 1):
        assert not trust.observe(320, 320, 16)
    assert not trust.observe(0, 0, 16)
    assert not trust.observe(320, 288, 16)
    for _ in range(MIN_AGREEMENTS - 1):
        assert not trust.observe(320, 330, 16)
    assert trust.observe(64, 64, 16)
    assert trust.is_reliable
    assert trust.error == 0.0


def test_an_engine_that_leaves_a_block_of_every_hit_is_learned() -> None:
    """As with a draft model: one block less, always. Where it stops, so do we."""
    trust = trusted()
    for _ in range(SHORT_ANSWERS - 1):
        trust.observe(trust.reusable(320), 304, 16)
    assert trust.reusable(320) == 320
    trust.observe(0, 0, 16)
    trust.observe(trust.reusable(64), 48, 16)
    assert (trust.trim_tokens, trust.reusable(320), trust.reusable(8)) == (16, 304, 0)
    for _ in range(SHORT_ANSWERS):
        trust.observe(trust.reusable(320), 304, 16)
    assert trust.trim_tokens == 16
    for _ in range(SHORT_ANSWERS):
        trust.observe(trust.reusable(320), 320, 16)
    assert trust.trim_tokens == 0
    assert trust.is_reliable


def test_drift_is_an_alarm() -> None:
    """Some wrong answers are chance, most of them wrong are not."""
    trust = trusted()
    for turn in range(100):
        assert not trust.observe(320 if turn % 10 else 0, 320, 16)
    assert 0.05 < trust.error < 0.25
    fell = [trust.observe(0, 320, 16) for _ in range(40)]
    assert sum(fell) == 1
    assert trust.unreliable_reason is UnreliableReason.DRIFT


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_an_error_is_a_share(answers: list[tuple[int, int]]) -> None:
    """Never below 0 or above 1, whatever is foretold."""
    trust = trusted()
    for foretold, real in answers:
        trust.observe(foretold * 16, real * 16, 16)
        assert 0.0 <= trust.error <= 1.0
