"""Orders: by rank all examples are tested, by worth a third is spent on maps that tell buckets and rungs apart."""

from math import nan

from cascade.calibration.orders import buckets_apart, by_rank, by_worth, lot, split, worth_maps
from tests.cascade.calibration.labels import example, rungs_of_three, telling


def test_few_examples_are_all_tested() -> None:
    """And many of one bucket too: one signal orders itself."""
    for drawn in (telling(2_000), telling(5_000), [*telling(500, bucket="a"), *telling(500, bucket="b")]):
        assert split(drawn) == ((), drawn)


def test_many_examples_of_many_kinds_are_split() -> None:
    """A third goes into the maps; no example is both spent and tested."""
    drawn = [*telling(2_500, bucket="a"), *telling(2_500, bucket="b")]
    spent, tested = split(drawn)
    assert len(spent) + len(tested) == 5_000
    assert not {id(one) for one in spent} & {id(one) for one in tested}
    assert split(rungs_of_three(1_600))[0]


def test_tiny_buckets_are_not_told_apart() -> None:
    """Their maps would be noise."""
    assert buckets_apart([*telling(300, bucket="a"), *telling(299, bucket="b")]) == {"a"}


def test_ranks_go_by_signal_and_then_by_lot() -> None:
    """Those that are alike share out the places that are theirs; the unknown have none."""
    levels = [own[0] for own in by_rank([example(1.0), example(5.0), example(1.0), example(nan), example(9.0)])]
    assert levels[3] is None
    first, second, third, last = (level for level in levels if level is not None)
    assert 0.0 < third < first <= 0.5 < second <= 0.75 < last <= 1.0


def test_lots_are_spread_evenly() -> None:
    """A tenth of them lies in each tenth."""
    lots = [int(lot(at) * 10) for at in range(1_000)]
    assert all(abs(lots.count(tenth) - 100) <= 3 for tenth in range(10))


def test_by_worth_goes_first_where_least_is_lost() -> None:
    """A bucket whose signal tells goes before one in which it does not, at the same signal."""
    sharp, dull = telling(3_000, bucket="sharp"), telling(3_000, shift=0.0, bucket="dull", seed=2)
    maps = worth_maps([*sharp, *dull], {"sharp", "dull"})
    asked = [example(1.5, bucket="sharp"), example(1.5, bucket="dull"), example(-3.0, bucket="sharp"), example(nan)]
    levels = [own[0] for own in by_worth(asked, maps)]
    first, second, third = (level for level in levels[:3] if level is not None)
    assert first > second > third
    assert levels[3] is None
