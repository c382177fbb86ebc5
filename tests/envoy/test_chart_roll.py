"""A rolling upgrade of everything that the chart runs: no client sees it."""

from pathlib import Path

import pytest

from tests.envoy.chart import settings, workload
from tests.envoy.chart_roll import a_chart

HURRY = 10.0
"""The chart's lame duck and probe periods are so much shorter here; `make roll` has them as they are."""


@pytest.mark.timeout(300)
async def test_all_processes_of_the_chart_are_restarted_and_no_request_fails(tmp_path: Path) -> None:
    """Proxies, pickers, agents and Redis at the same time, as their controllers do it; no client tries again."""
    async with a_chart(tmp_path, HURRY) as chart:
        await chart.roll_at_once()
    assert not chart.faults()
    kinds = {name.rstrip("0123456789").rstrip("-") for name in chart.stage.restarted}
    assert kinds == {"proxy", "picker", "node", "redis"}
    assert len(chart.stage.restarted) == 2 + 2 + 2 + 1


@pytest.mark.parametrize("file", ["agent", "picker"])
def test_grace_times_cover_lame_duck_and_drain(file: str) -> None:
    """Else the kubelet kills a gateway that still has streams."""
    gateway, timeouts = workload(file, "Deployment", "hearth"), settings(file)["timeouts"]
    assert gateway.grace_s > timeouts["lame_duck_s"] + timeouts["drain_s"]
    ready = gateway.probes["readiness"]
    assert timeouts["lame_duck_s"] > ready.period_s * ready.failures


def test_an_agent_that_is_upgraded_keeps_its_pods() -> None:
    """Its record stays for the next one, which comes within the time to live."""
    agent = workload("agent", "DaemonSet", "hearth-agent")
    assert agent.arguments[agent.arguments.index("--on-stop") + 1] == "keep"
