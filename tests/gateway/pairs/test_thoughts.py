"""The rest of an answer that has thought, placed as a pair: both legs read the very same token ids."""

from __future__ import annotations

from typing import Any

import pytest

from routing.request import Api
from simulator.faults import Fault, FaultKind
from simulator.transfer.wiring import KvRole
from tests.gateway.pairs.scene import CHAT, a_scene
from tests.gateway.resume.test_replay import hear
from tests.simulator.asking import LONG, chat, running

THOUGHT = 12

MESSAGES = "/v1/messages"

ASKED: dict[str, Any] = chat(LONG, max_tokens=32, ignore_eos=True, temperature=0.7)


@pytest.mark.parametrize(("api", "path"), [(Api.CHAT, CHAT), (Api.MESSAGES, MESSAGES)])
@pytest.mark.parametrize("connector", ["NixlConnector", "MooncakeConnector"])
@pytest.mark.parametrize("after", [5, 24])
async def test_thoughts_go_on_at_a_pair(connector: str, after: int, api: Api, path: str) -> None:
    """In the thoughts and in the text behind them; what the decode pod goes on from it has fetched."""
    async with running(max_reasoning_tokens=THOUGHT) as (_, alone):
        undisturbed = await alone.stream(path, ASKED)
    roles = (KvRole.PRODUCER, KvRole.CONSUMER, KvRole.CONSUMER)
    async with a_scene(connector, roles, max_reasoning_tokens=THOUGHT) as scene:
        scene.pods[1][0].set_fault(Fault(FaultKind.CUT, after_chunks=after, requests=1))
        answer = await scene.client.stream(path, ASKED)
        await scene.is_quiet()
        cut, gone_on = scene.attempts
        assert (cut.result, gone_on.result) == ("connection_reset", "ok")
        assert gone_on.prefill_engine == scene.pods[0][0].url
        assert gone_on.fallback_reason is None
        if connector == "NixlConnector":  # Where both legs are asked at once, the decode pod knows the prompt by then.
            assert await scene.fetched_tokens(2) > await scene.fetched_tokens(1)
    assert hear(api, answer.body).texts == hear(api, undisturbed.body).texts
