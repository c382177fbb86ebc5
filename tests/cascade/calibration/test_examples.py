"""Fingerprints of what was calibrated on."""

from cascade.calibration.examples import fingerprint
from tests.cascade.calibration.labels import example, rungs_of_three


def test_the_same_examples_have_the_same_fingerprint() -> None:
    """And any difference, order included, another."""
    one, two = example(0.1), example(0.2)
    assert fingerprint([one, two]) == fingerprint([example(0.1), example(0.2)])
    assert len({fingerprint(these) for these in ([one, two], [two, one], [one], [])}) == 4
    assert fingerprint([one]).startswith("sha256:")


def test_the_top_is_the_last_rung() -> None:
    """Counted from the cheapest."""
    assert rungs_of_three(1)[0].top == 2
