"""A short piece of chaos in which every deed waits for its moment and none for the clock: nobody may notice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.cast import Cast, key_of, on_stage
from tests.chaos.deeds import Deed, Kind
from tests.chaos.dialects import listen
from tests.chaos.doing import Doing
from tests.chaos.programs import pause
from tests.chaos.reported import Told, read_told
from tests.chaos.requested import Api, Asked, Heard, Tenant, Wanted
from tests.chaos.rest import await_rest
from tests.chaos.sdks import Sdks

pytestmark = pytest.mark.timeout(600)

PLAY: tuple[tuple[Api, Wanted, dict[str, object], Kind], ...] = (
    (Api.CHAT, Wanted.TEXT, {"kind": "cut", "after_chunks": 6}, Kind.REPLACE_REDIS),
    (Api.COMPLETIONS, Wanted.TEXT, {"kind": "reset", "after_chunks": 5, "spot": "character"}, Kind.STOP_GATEWAY),
    (Api.RESPONSES, Wanted.SCHEMA, {"kind": "damage", "after_chunks": 9, "spot": "frame"}, Kind.FLUSH_REDIS),
    (Api.MESSAGES, Wanted.ORDERED_CALL, {"kind": "abort", "after_chunks": 9}, Kind.KILL_POD),
)
"""What befalls each pod once in the middle of a stream, so that it loses both; and what is done when it has ended."""

TOLD_S = 120.0


async def test_streams_lose_both_their_pods_and_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """In each API: thoughts, text, calls, reason to end and tokens as undisturbed; at the end nothing is left."""
    async with on_stage(tmp_path, pods=2, gateways=1, thinks=True) as cast:
        front, undisturbed = Sdks(cast.front.url, key_of(Tenant.WIDE)), Sdks(cast.undisturbed.url, "k")
        doing = Doing(cast, lambda _: None)
        for number, (api, wanted, fault, deed) in enumerate(PLAY):
            await _befall(cast, {**fault, "requests": 1})
            requested = Asked(number, api, Tenant.WIDE, f"story {number}", True, 120, None, wanted, thinks=number > 1)
            received, undisturbed_said = Heard(), Heard()
            await listen(front, requested, received, lambda: None)
            await listen(undisturbed, requested, undisturbed_said, lambda: None)
            assert received.answer == undisturbed_said.answer
            await _befall(cast, {"kind": "none"})
            await doing.do(Deed(0.0, deed, 0, 0.0))
        await front.close()
        await undisturbed.close()
        assert not doing.faults
        assert not await await_rest(cast)
        reported = await _all_told(cast)
        assert reported.resumed, "no stream has lost its pod"
        assert not reported.not_resumed


async def _befall(cast: Cast, fault: dict[str, object]) -> None:
    for pod in cast.pods:
        async with cast.session.post(f"{pod.url}/faults", json=fault) as answer:
            assert answer.status == 200, await answer.text()


async def _all_told(cast: Cast) -> Told:
    """The logs are written a moment after."""
    async with asyncio.timeout(TOLD_S):
        while (reported := read_told(gateway.program.log for gateway in cast.gateways)).requests < len(PLAY):
            await pause(0.05)
    return reported
