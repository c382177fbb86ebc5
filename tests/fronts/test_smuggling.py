"""Behind nginx and Envoy: nobody is answered more often than he asked, and nobody gets what another has asked for."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.fronts.fronts import FRONTS
from tests.gateway.http.rig import a_rig
from tests.smuggling.asking import STATUS_LINE, connected, is_not_disturbed, told_so_far
from tests.smuggling.cases import CASES, GOES_ON, HIDDEN

ASKED = re.compile(rb"(?:POST|GET|PRI) \S+ HTTP/")
"""Whatever could be taken for the beginning of a request."""


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
async def test_no_one_gets_what_another_has_requested(front: type) -> None:
    """After each case strangers ask through the same front, over the connection that it shares between them.

    A front may take an ambiguous request for one or for none; if it and we read it in two ways, what one of us takes
    for a request of its own is answered to a stranger. Nothing hidden in a body reaches us as a request.
    """
    async with a_rig() as rig, front(rig.server.sockets[0].getsockname()[1]) as port, asyncio.timeout(280):
        await is_not_disturbed(port, "before")
        assert rig.front.open_connections == 1
        for number, (name, case) in enumerate(CASES.items()):
            async with connected(port) as client:
                await client.send(case.raw)
                await is_not_disturbed(port, f"stranger-{number}")
                reported = await told_so_far(client)
            statuses = [int(status) for status in STATUS_LINE.findall(reported)]
            answers = [status for status in statuses if status != GOES_ON]
            assert len(answers) <= len(ASKED.findall(case.raw)), (name, reported)
            assert b"stranger" not in reported, (name, reported)
            assert all(status < 600 for status in answers)
            await is_not_disturbed(port, f"after-{number}")
        assert not rig.pod.questions


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.closes and "offer" not in name])
async def test_what_is_clear_is_answered_as_often_as_it_is_called(front: type, name: str) -> None:
    """Bodies that look like requests, chunks, pipelines: through a front as without one, each with its own answer."""
    case = CASES[name]
    wanted = [status for status in case.statuses if status != GOES_ON]
    async with a_rig() as rig, front(rig.server.sockets[0].getsockname()[1]) as port, connected(port) as client:
        await client.send(case.raw)
        answers = [await client.answer() for _ in wanted]
        assert [answer.status for answer in answers] == wanted
        assert not any(HIDDEN.encode() in answer.body for answer in answers)
        await is_not_disturbed(port, "stranger")
