"""From levels to thresholds: what is kept wholly, and what by lot."""

from math import inf, nan

from cascade.calibration.edges import NEVER, Edge, kept_from
from cascade.ladder_file import ANY_BUCKET
from tests.cascade.calibration.labels import example

ALIKE = [example(1.0), example(1.0), example(1.0), example(1.0), example(2.0), example(nan)]
ORDER = [(0.1,), (0.3,), (0.5,), (0.6,), (0.9,), (None,)]


def test_a_level_between_two_signals_is_a_threshold() -> None:
    """Nothing is left to chance."""
    assert kept_from(ALIKE, ORDER, 0.9, [ANY_BUCKET]) == {(0, ANY_BUCKET): Edge(2.0)}
    assert kept_from(ALIKE, ORDER, 0.1, [ANY_BUCKET]) == {(0, ANY_BUCKET): Edge(1.0)}


def test_a_level_among_those_alike_keeps_a_share_of_them() -> None:
    """Above them all is kept."""
    assert kept_from(ALIKE, ORDER, 0.5, [ANY_BUCKET]) == {(0, ANY_BUCKET): Edge(2.0, 1.0, 0.5)}


def test_one_signal_for_all_has_an_edge_only() -> None:
    """No signal is above it."""
    assert kept_from(ALIKE[:4], ORDER[:4], 0.3, [ANY_BUCKET]) == {(0, ANY_BUCKET): Edge(inf, 1.0, 0.75)}
    assert kept_from(ALIKE, ORDER, 2.0, [ANY_BUCKET]) == {(0, ANY_BUCKET): NEVER}


def test_buckets_have_their_own() -> None:
    """Others share the one for any."""
    drawn = [example(1.0, bucket="a"), example(2.0, bucket="b")]
    assert kept_from(drawn, [(0.5,), (0.5,)], 0.5, ["a", ANY_BUCKET]) == {
        (0, "a"): Edge(1.0),
        (0, ANY_BUCKET): Edge(2.0),
    }
