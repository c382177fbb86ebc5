"""The bench of scaling: its fleet, its clairvoyant, and what it keeps of a run."""

from __future__ import annotations

from random import Random

import pytest

from bench.scale.clairvoyant import clairvoyant
from bench.scale.fleet import Cluster, play
from bench.scale.runs import Outcome, Row, read_outcome, write_outcome
from bench.scale.scalers import Fixed, Hpa, Ours
from bench.scale.traffic import LOGNORMAL, Arrivals, draw

SECONDS = 1_800.0
CLUSTER = Cluster(60.0, 60.0, max_engines=30)


@pytest.fixture(scope="module")
def arrivals() -> Arrivals:
    """Half an hour that doubles its load in the middle."""
    return draw(lambda at: 0.3 if at < 900 else 0.6, SECONDS, LOGNORMAL, Random(7))


def test_more_engines_meet_more_objectives_and_cost_more(arrivals: Arrivals) -> None:
    """None are met without engines; all are with enough of them."""
    few, some, many = (play(arrivals, SECONDS, CLUSTER, Fixed(count), count) for count in (2, 8, 30))
    assert few.attainment < some.attainment < many.attainment
    assert many.attainment > 0.99
    assert many.engine_hours == pytest.approx(15.0, rel=0.01)
    assert play(arrivals, SECONDS, CLUSTER, Fixed(0), 0).attainment == 0.0


def test_an_engine_serves_after_its_start_only(arrivals: Arrivals) -> None:
    """Five minutes without engines lose the requests of five minutes."""
    late = play(arrivals, SECONDS, Cluster(300.0, 300.0), Fixed(20), 0)
    early = sum(at < 300 for at in arrivals.at)
    assert sum(late.misses[:1]) >= 0.95 * early
    assert late.attainment > 0.7


def test_a_cluster_grants_what_it_may(arrivals: Arrivals) -> None:
    """The count never exceeds it."""
    bounded = Cluster(60.0, 60.0, max_engines=30, granted=lambda _: 5)
    played = play(arrivals, SECONDS, bounded, Fixed(20), 5)
    assert played.peak == 5
    assert played.max_wanted == 20


def test_the_clairvoyant_is_cheaper_than_scalers_that_react(arrivals: Arrivals) -> None:
    """It has the attainment of all engines; ours is near it, HPA is dearer."""
    bound = clairvoyant(arrivals, SECONDS, CLUSTER)
    assert bound.played.attainment >= bound.best - 0.01
    ours = play(arrivals, SECONDS, CLUSTER, Ours("ours", LOGNORMAL, max_engines=30), 6)
    hpa = play(arrivals, SECONDS, CLUSTER, Hpa(), 6)
    assert ours.attainment > 0.85
    assert ours.engine_hours < hpa.engine_hours
    assert bound.played.engine_hours < 0.8 * hpa.engine_hours


def test_the_figures_of_a_case_survive_a_file() -> None:
    """As JSON."""
    outcome = Outcome("day", 1, 10, 1.0, (Row("Hearth", 0.9, (0.9, 0.8), 3.5, 4, 5, 6),))
    assert read_outcome(write_outcome(outcome)) == outcome
