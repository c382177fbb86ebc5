"""A crowd hangs up while a gateway's queue is full: the gateway goes on as if it had never been there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cast import on_stage
from tests.chaos.deeds import Deed, Kind
from tests.chaos.doing import Doing
from tests.chaos.readings import read_metrics
from tests.chaos.rest import await_rest

pytestmark = pytest.mark.timeout(600)


async def test_a_gateway_serves_on_after_clients_hang_up_together(tmp_path: Path) -> None:
    """Twice: nothing is left of them, nothing was caught, and their tenant's next request is answered."""
    async with on_stage(tmp_path, pods=2, gateways=1) as cast:
        doing = Doing(cast, lambda _: None)
        for _ in range(2):
            await doing.do(Deed(0.0, Kind.CROWD_GATEWAY, 0, 0.0))
        assert not doing.faults
        assert not await await_rest(cast)
        reading = await read_metrics(cast.session, cast.gateways[0].metrics)
        assert reading is not None
        assert not reading.by("hearth_callback_errors_total", "loop")
        assert reading.sum_of("hearth_requests_total") > 0
