"""Counters of engines are summed from one reading to the next, and never fall."""

from gateway.fleet.engine_counters import EngineCounters

KEY = ("tokens", "pool", "either")


def read(counters: EngineCounters, engine: str, value: float) -> float:
    counters.observe(engine, "pool", "either", {"tokens": value})
    return counters.sums[KEY]


def test_what_an_engine_counted_before_is_not_added() -> None:
    """Its first reading is where its part begins: an engine of last week that joins makes no leap."""
    counters = EngineCounters()
    assert [read(counters, "http://a:1", value) for value in (1e9, 1e9 + 5, 1e9 + 7)] == [0, 5, 7]
    assert read(counters, "http://b:1", 1e6) == 7


def test_a_restarted_engine_takes_nothing_away() -> None:
    """Its counter begins at zero again."""
    counters = EngineCounters()
    assert [read(counters, "http://a:1", value) for value in (100, 110, 3, 4)] == [0, 10, 13, 14]


def test_a_pod_that_leaves_and_returns_begins_again() -> None:
    """With all its ranks, and no others."""
    counters = EngineCounters()
    for engine in ("http://a:1#0", "http://a:10#0"):
        read(counters, engine, 10)
    counters.forget("http://a:1")
    assert read(counters, "http://a:1#0", 50) == 0
    assert read(counters, "http://a:10#0", 15) == 5


def test_a_change_of_role_begins_a_sum_of_its_own() -> None:
    """What was counted stays with the role it was counted in."""
    counters = EngineCounters()
    counters.observe("http://a:1", "pool", "prefill", {"tokens": 1.0})
    counters.observe("http://a:1", "pool", "decode", {"tokens": 4.0})
    assert counters.sums == {("tokens", "pool", "prefill"): 0.0, ("tokens", "pool", "decode"): 3.0}
