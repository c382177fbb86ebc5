"""A child that cannot live is not started over and over; one that lived well is replaced at once."""

from itertools import pairwise

from gateway.processes.seat import FIRST_PAUSE_S, LONGEST_PAUSE_S, SETTLED_S, next_pause


def test_pauses_grow_with_every_early_death() -> None:
    """Up to a bound; a child that has lived long resets them."""
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause(pauses[-1], lived_s=0.5))
    assert pauses[1] == FIRST_PAUSE_S
    assert all(later == min(LONGEST_PAUSE_S, 2 * earlier) for earlier, later in pairwise(pauses[1:]))
    assert pauses[-1] == LONGEST_PAUSE_S
    assert next_pause(LONGEST_PAUSE_S, lived_s=SETTLED_S) == FIRST_PAUSE_S
