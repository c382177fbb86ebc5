"""How many examples would do: an honest estimate, and no number where none would."""

from cascade.calibration.calibrate import calibrate
from cascade.calibration.needs import examples_needed
from cascade.calibration.orders import by_rank
from cascade.calibration.walk import cost_of_top, walk
from cascade.ladder_file import Promise
from tests.cascade.calibration.labels import example, telling
from tests.cascade.calibration.test_calibrate import SUBJECT

PROMISE = Promise(0.03, 0.95)


def test_so_many_do() -> None:
    """Where 90 are too few, as many as were named mostly carry the promise, and never fewer than were there."""
    told = [calibrate(telling(90, seed=seed, shift=1.3), SUBJECT, PROMISE).file for seed in range(10)]
    needs = [file.evidence.needs for file in told if file.evidence.needs]
    assert len(needs) == 10, "90 never show a loss below 3 %"
    assert min(needs) > 90
    middle = sorted(needs)[len(needs) // 2]
    enough = [calibrate(telling(middle, seed=seed, shift=1.3), SUBJECT, PROMISE) for seed in range(100, 110)]
    assert sum(found.file.is_promised for found in enough) >= 7


def test_where_every_rule_loses_too_much_no_number_does() -> None:
    """A small model that is wrong where it is surest."""
    drawn = [example(1.0, small=0.0)] * 100 + [example(0.0)] * 100
    steps = walk(drawn, by_rank(drawn), PROMISE)
    assert examples_needed(steps, PROMISE, cost_of_top(drawn), len(drawn)) is None
