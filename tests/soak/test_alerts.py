"""An alert that fires during a run is found, and a Prometheus that has seen nothing is no calm."""

from __future__ import annotations

import pytest

from tests.deploy.prometheus import Answer
from tests.soak.alerts import AlertWatch, FiredAlert

PAGE = (("alertname", "HearthPodDown"), ("alertstate", "firing"), ("upstream", "http://a:1"))


class Scripted:
    """Answers with the gateways that were scraped, and with what has fired."""

    def __init__(self, scraped: float, fired: Answer) -> None:
        self.expressions = list[str]()
        self._scraped = scraped
        self._fired = fired

    async def query(self, expression: str) -> Answer:
        self.expressions.append(expression)
        if "ALERTS" in expression:
            return self._fired
        return {(): self._scraped} if self._scraped else {}


async def test_what_has_fired_is_listed() -> None:
    """By name, with its labels, over the time of the run."""
    queries = Scripted(3.0, {PAGE: 4.0})
    fired = await AlertWatch(queries, 3, 100.0).fired(279.5)
    assert fired == [FiredAlert("HearthPodDown", (("upstream", "http://a:1"),), 4)]
    assert queries.expressions[-1] == 'count_over_time(ALERTS{alertstate="firing"}[180s])'
    assert await AlertWatch(Scripted(3.0, {}), 3, 0.0).fired(60.0) == []


@pytest.mark.parametrize("scraped", [0.0, 2.0])
async def test_gateways_that_were_not_scraped_are_a_fault(scraped: float) -> None:
    """Nothing fires where nothing is seen."""
    with pytest.raises(RuntimeError, match="all of 3 gateways"):
        await AlertWatch(Scripted(scraped, {}), 3, 0.0).fired(60.0)
