"""`gateways` counts where there is no Redis, and nowhere else."""

from __future__ import annotations

import pytest

from gateway.app.build import build
from gateway.config.fields import Secret
from gateway.config.settings import Settings
from tests.tenancy.policies import KEYED, policy


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (Settings(), 1.0),
        (Settings(gateways=4), 0.25),
        (Settings(gateways=4, redis=Secret("redis://127.0.0.1:9")), 1.0),
    ],
    ids=["alone", "counted", "linked"],
)
async def test_a_gateway_admits_to_its_part_of_each_engine(settings: Settings, part: float) -> None:
    """Of four without a Redis, a quarter; with one they count each other."""
    gateway = build(settings, policy(KEYED))
    try:
        admission = gateway.admission_queue.admission
        assert admission is not None
        assert admission.unlinked_part == part
    finally:
        await gateway.probes.close()
