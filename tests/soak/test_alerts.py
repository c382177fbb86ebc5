"""An alert that fires during a run is found, and a Prometheus that has seen nothing is no calm."""

from __future__ import annotations

import pytest

from tests.chaos.deeds import Kind
from tests.chaos.findings import Done
from tests.deploy.prometheus import Answer
from tests.soak.alerts import REACH_S, AlertWatch, Cause, FiredAlert, causes_of

PAGE = (("alertname", "HearthPodDown"), ("alertstate", "firing"), ("upstream", "http://a:1"))


class Scripted:
    """Answers with the gateways that were scraped, and with what has fired."""

    def __init__(self, scraped: float, fired: Answer, *, ages_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """`ages_s`: how long ago all of them fired first and last."""
        self.expressions = list[str]()
        self._scraped = scraped
        self._fired = fired
        self._ages_s = ages_s

    async def query(self, expression: str) -> Answer:
        self.expressions.append(expression)
        if "timestamp(" in expression:
            return dict.fromkeys(self._fired, self._ages_s["max_over_time" in expression])
        if "ALERTS" in expression:
            return self._fired
        return {(): self._scraped} if self._scraped else {}


async def test_what_has_fired_is_listed() -> None:
    """By name, with its labels, over the time of the run."""
    queries = Scripted(3.0, {PAGE: 4.0})
    fired = await AlertWatch(queries, 3, 100.0).fired(279.5)
    assert fired == [FiredAlert("HearthPodDown", (("upstream", "http://a:1"),), 4)]
    assert queries.expressions[1] == 'count_over_time(ALERTS{alertstate="firing"}[180s])'
    assert await AlertWatch(Scripted(3.0, {}), 3, 0.0).fired(60.0) == []


@pytest.mark.parametrize(
    ("cause", "is_own"),
    [
        (Cause("http://a:1", "kill pod", 1_100.0, 1_110.0), True),
        (Cause("http://a:1", "kill pod", 1_900.0, 1_910.0), True),
        (Cause("http://a:1", "kill pod", 300.0, 1_000.0 - REACH_S - 1.0), False),
        (Cause("http://a:1", "kill pod", 1_951.0, 1_960.0), False),
        (Cause("http://b:1", "kill pod", 900.0, 910.0), False),
        (Cause("redis0", "kill redis", 900.0, 910.0), False),
    ],
)
async def test_an_alert_for_a_fault_of_the_run_is_listed_apart(cause: Cause, is_own: bool) -> None:
    """It fired from 1,000 s to 1,950 s: faults of another pod, of long before and of later do not excuse it."""
    (fired,) = await AlertWatch(Scripted(3.0, {PAGE: 4.0}, ages_s=(1_000.0, 50.0)), 3, 0.0).fired(2_000.0, [cause])
    assert fired.faults == (("kill pod",) if is_own else ())
    assert ("after 1 faults" in str(fired)) == is_own


async def test_an_alert_of_the_fleet_is_never_excused_and_one_of_redis_is_by_redis() -> None:
    """Rejections and burnt objectives have no subject that may fail: other pods have to bear what one suffers."""
    causes = causes_of(
        [Done("pod0", Kind.KILL_POD, 0, 0.0, 9.0), Done("redis0", Kind.KILL_REDIS, 0, 0.0, 9.0)], {"pod0": "http://a:1"}
    )
    assert causes[0].subject == "http://a:1"
    fleet = (("alertname", "HearthSLOBurnFast"), ("alertstate", "firing"))
    redis = (("alertname", "HearthRedisLost"), ("alertstate", "firing"))
    fired = await AlertWatch(Scripted(3.0, {fleet: 1.0, redis: 1.0}), 3, 0.0).fired(10.0, causes)
    assert [(alert.name, alert.faults) for alert in fired] == [
        ("HearthRedisLost", ("kill redis",)),
        ("HearthSLOBurnFast", ()),
    ]


@pytest.mark.parametrize("scraped", [0.0, 2.0])
async def test_gateways_that_were_not_scraped_are_a_fault(scraped: float) -> None:
    """Nothing fires where nothing is seen."""
    with pytest.raises(RuntimeError, match="all of 3 gateways"):
        await AlertWatch(Scripted(scraped, {}), 3, 0.0).fired(60.0)
