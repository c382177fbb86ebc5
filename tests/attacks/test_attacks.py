"""Every attack in small against a real gateway: bounds hold, and decent clients are served meanwhile."""

from __future__ import annotations

import pytest

from tests.attacks.attacks import ATTACKS
from tests.attacks.playing import play, staged

COUNT = 200


@pytest.mark.timeout(600)
async def test_no_attack_takes_more_than_it_may() -> None:
    """One after the other against one gateway; `make attacks` plays them with ten thousand."""
    async with staged() as stage:
        for attack in ATTACKS:
            played = await play(stage, attack, COUNT)
            assert played.is_kept, played
